// What the browser keeps between visits: conversations and settings, bounded. Nothing of it is sent anywhere by itself.
const MAX_CONVERSATIONS = 50;
/// Most characters of all conversations; browsers allow about five million.
const MAX_CHARACTERS = 2_000_000;

export const conversation = () => ({ id: crypto.randomUUID?.() ?? String(Math.random()), title: '', turns: [] });

export function read(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(`skein.${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function write(name, value) {
  try {
    localStorage.setItem(`skein.${name}`, JSON.stringify(value));
  } catch {
    // Full, or forbidden: the page works without.
  }
}

export function conversations() {
  const kept = read('conversations', []);
  return Array.isArray(kept) && kept.length ? kept : [conversation()];
}

export function keep(all) {
  const kept = [];
  let characters = 0;
  for (const one of all.slice(0, MAX_CONVERSATIONS)) {
    characters += JSON.stringify(one).length;
    if (characters > MAX_CHARACTERS) break;
    kept.push(one);
  }
  write('conversations', kept);
}
