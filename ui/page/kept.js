// What the browser keeps between visits: conversations and settings, bounded. Nothing of it is sent anywhere
// by itself. Whatever is found there may be of another version, another program or half of something: only
// what has the right shape is used.
import { restored } from './answer.js';

const MAX_CONVERSATIONS = 50;
/// Most characters of all conversations; browsers allow about five million.
const MAX_CHARACTERS = 2_000_000;
const PREFIX = 'skein.';
/// Each conversation has a key of its own, so that two tabs do not overwrite each other's.
const CONVERSATION = `${PREFIX}conversation.`;

export const conversation = () => ({ id: crypto.randomUUID?.() ?? String(Math.random()), title: '', turns: [], time: Date.now() });

const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);
const isText = (value) => typeof value === 'string';

/// The value at `name` if it is there and `fits`.
export function read(name, otherwise, fits) {
  const value = parsed(() => localStorage.getItem(PREFIX + name));
  return fits(value) ? value : otherwise;
}

export const text = (name) => read(name, '', isText);
/// The colours that were chosen; '' = as the system.
export const theme = () => read('theme', '', (value) => value === 'dark' || value === 'light');

/// Settings: texts by name. A number is a text of digits.
export function settings(name, otherwise) {
  const found = Object.entries(read(name, otherwise, isObject));
  return Object.fromEntries(found.filter(([, value]) => isText(value) || Number.isFinite(value)).map(([field, value]) => [field, String(value)]));
}

function parsed(find) {
  try {
    return JSON.parse(find());
  } catch {
    return null;
  }
}

export function write(name, value) {
  return put(PREFIX + name, JSON.stringify(value));
}

function put(key, value) {
  try {
    localStorage.setItem(key, value);
    return true;
  } catch {
    // Full, or forbidden: the page works without.
    return false;
  }
}

function drop(key) {
  try {
    localStorage.removeItem(key);
  } catch {
    // As above.
  }
}

function turnOf(value) {
  if (!isObject(value)) return null;
  if (value.role === 'assistant') {
    const answer = restored(value.answer);
    return answer && { role: 'assistant', answer };
  }
  if (!isText(value.text)) return null;
  if (value.role === 'tool') return { role: 'tool', id: isText(value.id) ? value.id : '', text: value.text };
  return value.role === 'user' ? { role: 'user', text: value.text } : null;
}

/// The conversation that is kept as `value`; `null` if that is none.
export function conversationOf(value) {
  if (!isObject(value) || !isText(value.id) || !value.id || !Array.isArray(value.turns)) return null;
  const turns = value.turns.map(turnOf).filter(Boolean);
  return turns.length ? { id: value.id, title: isText(value.title) ? value.title : '', turns, time: Number.isFinite(value.time) ? value.time : 0 } : null;
}

/// Conversations as they were read or written last, with the text of each: what is the same is not written
/// again.
const known = new Map();

/// All that are kept, the newest first; at least one.
export function conversations() {
  const found = [];
  for (const key of keys()) {
    const one = conversationOf(parsed(() => localStorage.getItem(key)));
    if (one && CONVERSATION + one.id === key) found.push(one);
  }
  for (const one of found) known.set(one.id, { one, text: JSON.stringify(one) });
  return found.length ? found.sort((a, b) => b.time - a.time) : [conversation()];
}

function keys() {
  try {
    return Object.keys(localStorage).filter((key) => key.startsWith(CONVERSATION));
  } catch {
    return [];
  }
}

/// Keeps the newest of `all` that fit. Returns why each of the others is not kept, or not as it is now, by
/// its id.
export function keep(all) {
  const without = new Map();
  let [count, characters] = [0, 0];
  for (const one of all.filter(({ turns }) => turns.length).sort((a, b) => b.time - a.time)) {
    const before = known.get(one.id);
    const text = before?.one === one ? before.text : JSON.stringify(one);
    if (count >= MAX_CONVERSATIONS || characters >= MAX_CHARACTERS) {
      without.set(one.id, 'newer ones need the room');
      forget(one.id);
      continue;
    }
    const fits = characters + text.length <= MAX_CHARACTERS;
    if (fits && (before?.text === text || put(CONVERSATION + one.id, text))) known.set(one.id, { one, text });
    else without.set(one.id, text.length > MAX_CHARACTERS ? 'it is too long' : 'there is no room');
    // Of one that has grown too long, what was kept before stays.
    count += known.has(one.id) ? 1 : 0;
    characters += known.get(one.id)?.text.length ?? 0;
  }
  return without;
}

export function forget(id) {
  known.delete(id);
  drop(CONVERSATION + id);
}

/// Forgets all conversations and settings, but neither the key nor the colours.
export function forgetAll() {
  for (const key of keys()) drop(key);
  for (const name of ['chat', 'completion', 'prompt']) drop(PREFIX + name);
}

/// `all` after another tab changed what is kept, as the event tells. `busy` is the id of the conversation
/// that this tab writes.
export function merged(all, { key, newValue }, busy) {
  const id = key?.startsWith(CONVERSATION) ? key.slice(CONVERSATION.length) : null;
  if (!id || id === busy) return all;
  const one = newValue === null ? null : conversationOf(parsed(() => newValue));
  if (one?.id === id) {
    known.set(id, { one, text: newValue });
    return all.some((other) => other.id === id) ? all.map((other) => (other.id === id ? one : other)) : [one, ...all];
  }
  if (!known.delete(id)) return all;
  const rest = all.filter((other) => other.id !== id);
  return rest.length ? rest : [conversation()];
}
