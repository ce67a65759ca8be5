// Chat: a list of conversations, the thread, and what is sent with each turn.
import { message } from './answer.js';
import { generate } from './generation.js';
import { html, useEffect, useRef, useState } from './html.js';
import { Sampling, fields } from './sampling.js';
import { Turn } from './turn.js';
import * as kept from './kept.js';

/// How often a conversation is kept while an answer is written, ms.
const KEEP_EVERY = 2000;

export function Chat({ model }) {
  const [conversations, setConversations] = useState(kept.conversations);
  const [open, setOpen] = useState(conversations[0].id);
  const [settings, setSettings] = useState(() => kept.settings('chat', {}));
  const [running, setRunning] = useState(null);
  const [problem, setProblem] = useState('');
  const [shown, setShown] = useState('');
  const without = useKept(conversations, setConversations, running);
  const conversation = conversations.find(({ id }) => id === open) ?? conversations[0];

  useEffect(() => void kept.write('chat', settings), [settings]);

  const update = (id, change) =>
    setConversations((all) => all.map((one) => (one.id === id ? { ...one, ...change(one) } : one)));

  /// Asks for an answer to `turns`, which become those of the conversation. Returns whether they can be sent.
  function answer(turns) {
    const id = conversation.id;
    setProblem('');
    let body;
    try {
      body = { ...fields(settings, true), model, messages: asked(settings.system, turns) };
    } catch (error) {
      setProblem(error.message);
      return false;
    }
    const title = turns[0].text?.slice(0, 60) ?? '';
    update(id, (one) => ({ turns, title: one.title || title, time: Date.now() }));
    const abort = new AbortController();
    setRunning({ id, abort });
    generate('v1/chat/completions', body, abort.signal, (one) => update(id, () => ({ turns: [...turns, { role: 'assistant', answer: one }] })))
      .then(() => setRunning(null));
    return true;
  }

  const send = (text) => answer([...conversation.turns, { role: 'user', text }]);
  // The turns are not drawn again when these change, so they find them where they stay.
  const deeds = useRef();
  deeds.current = {
    regenerate() {
      const turns = [...conversation.turns];
      while (turns.at(-1)?.role === 'assistant') turns.pop();
      if (turns.length) answer(turns);
    },
    edit: (at, text) => answer([...conversation.turns.slice(0, at), { ...conversation.turns[at], text }]),
    results: (turn, given) => answer([...conversation.turns, ...turn.answer.calls.map((call, at) => ({ role: 'tool', id: call.id, text: given[at] ?? '' }))]),
  };
  const begin = () => {
    const fresh = kept.conversation();
    setConversations((all) => [fresh, ...all]);
    setOpen(fresh.id);
    setShown('');
  };
  const remove = (id) => {
    if (running?.id === id) running.abort.abort();
    kept.forget(id);
    const rest = conversations.filter((one) => one.id !== id);
    setConversations(rest.length ? rest : [kept.conversation()]);
  };
  const busy = running !== null;
  const isShown = (what) => (shown === what ? ' shown' : '');
  const toggle = (what) => () => setShown(shown === what ? '' : what);

  return html`<div class="chat">
    <nav class=${`side${isShown('list')}`} aria-label="Conversations">
      <button type="button" onClick=${begin}>New chat</button>
      <ul>${conversations.map(({ id, title }) => html`<li key=${id} class=${id === conversation.id ? 'current' : ''}>
        <button type="button" class="quiet name" aria-current=${id === conversation.id} onClick=${() => (setOpen(id), setShown(''))}>${title || 'New chat'}
          ${without.has(id) && html`<small>Not kept: ${without.get(id)}.</small>`}</button>
        <button type="button" class="quiet" aria-label=${`Delete ${title || 'New chat'}`} onClick=${() => remove(id)}>×</button>
      </li>`)}</ul>
    </nav>
    <div class="middle">
      <div class="bar">
        <button type="button" class="quiet narrow" aria-expanded=${shown === 'list'} onClick=${toggle('list')}>Chats</button>
        <button type="button" class="quiet narrow" aria-expanded=${shown === 'fields'} onClick=${toggle('fields')}>Settings</button>
      </div>
      <${Thread} key=${conversation.id} turns=${conversation.turns} running=${running?.id === conversation.id} busy=${busy} deeds=${deeds} />
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}
      <${Composer} busy=${busy} send=${send} stop=${() => running?.abort.abort()} />
    </div>
    <aside class=${`side right${isShown('fields')}`} aria-label="Settings">
      <${Sampling} settings=${settings} change=${setSettings} isChat />
    </aside>
  </div>`;
}

/// Keeps the conversations: when one is sent, from time to time while it is answered, and when the page is
/// left; takes over what other tabs keep. Returns why some are not kept, by their ids.
function useKept(conversations, setConversations, running) {
  const [without, setWithout] = useState(() => new Map());
  const latest = useRef();
  latest.current = { conversations, busy: running?.id };
  const keep = () => {
    const now = kept.keep(latest.current.conversations);
    setWithout((before) => (before.size || now.size ? now : before));
  };
  useEffect(() => {
    if (!running) keep();
  }, [conversations, running]);
  useEffect(() => {
    if (!running) return undefined;
    keep();
    const timer = setInterval(keep, KEEP_EVERY);
    return () => clearInterval(timer);
  }, [running]);
  useEffect(() => {
    const changed = (event) => setConversations((all) => kept.merged(all, event, latest.current.busy));
    const left = () => kept.keep(latest.current.conversations);
    addEventListener('storage', changed);
    addEventListener('pagehide', left);
    return () => {
      removeEventListener('storage', changed);
      removeEventListener('pagehide', left);
    };
  }, []);
  return without;
}

function asked(system, turns) {
  const messages = system?.trim() ? [{ role: 'system', content: system }] : [];
  for (const turn of turns) {
    if (turn.role === 'assistant') messages.push(message(turn.answer));
    else if (turn.role === 'tool') messages.push({ role: 'tool', tool_call_id: turn.id, content: turn.text });
    else messages.push({ role: 'user', content: turn.text });
  }
  return messages;
}

function Thread({ turns, running, busy, deeds }) {
  const end = useRef();
  const follow = useRef(true);
  useEffect(() => {
    if (follow.current && end.current) end.current.scrollTop = end.current.scrollHeight;
  }, [turns]);
  const onScroll = ({ currentTarget: at }) => {
    follow.current = at.scrollHeight - at.scrollTop - at.clientHeight < 40;
  };
  const last = turns.length - 1;
  return html`<div class="thread" ref=${end} onScroll=${onScroll} tabindex="0" role="log" aria-live="off" aria-label="Messages">
    <h2 class="heard">Messages</h2>
    ${turns.length === 0 && html`<p class="empty">Write below to begin. Nothing leaves this server.</p>`}
    ${turns.map((turn, at) => html`<${Turn} key=${at} turn=${turn} at=${at} isLast=${at === last} running=${running && at === last} busy=${busy} deeds=${deeds} />`)}
    <p class="heard" role="status">${running ? 'The answer is being written.' : ''}</p>
  </div>`;
}

function Composer({ busy, send, stop }) {
  const [text, setText] = useState('');
  const area = useRef();
  useEffect(() => area.current?.focus(), []);
  const submit = (event) => {
    event.preventDefault();
    if (busy || !text.trim()) return;
    if (send(text)) setText('');
  };
  const onKeyDown = (event) => {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) submit(event);
    if (event.key === 'Escape' && busy) stop();
  };
  return html`<form class="composer" onSubmit=${submit}>
    <textarea ref=${area} rows="2" aria-label="Message" placeholder="Message (Enter sends, Shift+Enter breaks the line, Esc stops)" value=${text}
      onInput=${(event) => setText(event.currentTarget.value)} onKeyDown=${onKeyDown} />
    ${busy ? html`<button type="button" onClick=${stop}>Stop</button>` : html`<button disabled=${!text.trim()}>Send</button>`}
  </form>`;
}
