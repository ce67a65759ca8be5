// Chat: a list of conversations, the thread, and what is sent with each turn.
import { message, speed } from './answer.js';
import { generate } from './generation.js';
import { html, useEffect, useRef, useState } from './html.js';
import { Markdown, Plain } from './markdown.js';
import { Sampling, fields } from './sampling.js';
import * as kept from './kept.js';

export function Chat({ model }) {
  const [conversations, setConversations] = useState(kept.conversations);
  const [open, setOpen] = useState(conversations[0].id);
  const [settings, setSettings] = useState(() => kept.read('chat', {}));
  const [running, setRunning] = useState(null);
  const [problem, setProblem] = useState('');
  const [shown, setShown] = useState('');
  const conversation = conversations.find(({ id }) => id === open) ?? conversations[0];

  useEffect(() => kept.write('chat', settings), [settings]);
  useEffect(() => {
    if (!running) kept.keep(conversations);
  }, [conversations, running]);

  const update = (id, change) =>
    setConversations((all) => all.map((one) => (one.id === id ? { ...one, ...change(one) } : one)));

  async function answer(turns) {
    const id = conversation.id;
    setProblem('');
    let body;
    try {
      body = { ...fields(settings, true), model, messages: asked(settings.system, turns) };
    } catch (error) {
      setProblem(error.message);
      return;
    }
    const abort = new AbortController();
    setRunning({ id, abort });
    await generate('v1/chat/completions', body, abort.signal, (one) => update(id, () => ({ turns: [...turns, { role: 'assistant', answer: one }] })));
    setRunning(null);
  }

  const send = (text) => {
    const turns = [...conversation.turns, { role: 'user', text }];
    update(conversation.id, (one) => ({ turns, title: one.title || text.slice(0, 60) }));
    answer(turns);
  };
  const regenerate = () => {
    const turns = [...conversation.turns];
    while (turns.at(-1)?.role === 'assistant') turns.pop();
    if (turns.length) answer(turns);
  };
  const edit = (at, text) => {
    const turns = [...conversation.turns.slice(0, at), { ...conversation.turns[at], text }];
    answer(turns);
  };
  const results = (turn, given) => {
    const turns = [...conversation.turns, ...turn.answer.calls.map((call, at) => ({ role: 'tool', id: call.id, text: given[at] ?? '' }))];
    update(conversation.id, () => ({ turns }));
    answer(turns);
  };
  const begin = () => {
    const fresh = kept.conversation();
    setConversations((all) => [fresh, ...all]);
    setOpen(fresh.id);
    setShown('');
  };
  const remove = (id) => {
    if (running?.id === id) running.abort.abort();
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
        <button type="button" class="quiet name" aria-current=${id === conversation.id} onClick=${() => (setOpen(id), setShown(''))}>${title || 'New chat'}</button>
        <button type="button" class="quiet" aria-label=${`Delete ${title || 'New chat'}`} onClick=${() => remove(id)}>×</button>
      </li>`)}</ul>
    </nav>
    <div class="middle">
      <div class="bar">
        <button type="button" class="quiet narrow" aria-expanded=${shown === 'list'} onClick=${toggle('list')}>Chats</button>
        <button type="button" class="quiet narrow" aria-expanded=${shown === 'fields'} onClick=${toggle('fields')}>Settings</button>
      </div>
      <${Thread} turns=${conversation.turns} running=${running?.id === conversation.id} busy=${busy}
        regenerate=${regenerate} edit=${edit} results=${results} />
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}
      <${Composer} busy=${busy} send=${send} stop=${() => running?.abort.abort()} />
    </div>
    <aside class=${`side right${isShown('fields')}`} aria-label="Settings">
      <${Sampling} settings=${settings} change=${setSettings} isChat />
    </aside>
  </div>`;
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

function Thread({ turns, running, busy, regenerate, edit, results }) {
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
    ${turns.length === 0 && html`<p class="empty">Write below to begin. Nothing leaves this server.</p>`}
    ${turns.map((turn, at) => html`<${Turn} key=${at} turn=${turn} at=${at} isLast=${at === last} running=${running && at === last}
      busy=${busy} regenerate=${regenerate} edit=${edit} results=${results} />`)}
    <p class="heard" role="status">${running ? 'The answer is being written.' : ''}</p>
  </div>`;
}

function Turn({ turn, at, isLast, running, busy, regenerate, edit, results }) {
  const [draft, setDraft] = useState(null);
  if (turn.role === 'tool') return html`<article class="turn tool" aria-label="Result of a tool"><pre>${turn.text}</pre></article>`;
  if (turn.role === 'user') {
    const save = (event) => {
      event.preventDefault();
      edit(at, draft);
      setDraft(null);
    };
    return html`<article class="turn user" aria-label="You">
      ${draft === null
        ? html`<div class="prose plain">${turn.text}</div><footer><button type="button" class="quiet" disabled=${busy} onClick=${() => setDraft(turn.text)}>Edit</button></footer>`
        : html`<form onSubmit=${save}><textarea rows="3" aria-label="Your message" value=${draft} onInput=${(event) => setDraft(event.currentTarget.value)} />
            <button disabled=${busy}>Send again</button> <button type="button" class="quiet" onClick=${() => setDraft(null)}>Cancel</button></form>`}
    </article>`;
  }
  const { answer } = turn;
  const inside = (where) => answer.moves.filter((move) => move.inside === where);
  return html`<article class="turn assistant" aria-label="Answer" aria-busy=${running}>
    ${answer.reasoning && html`<details class="reasoning"><summary>Reasoning${running && !answer.content ? ' …' : ''}</summary>
      <${Plain} text=${answer.reasoning} moves=${inside('reasoning')} /></details>`}
    <${Markdown} text=${answer.content} moves=${inside('content')} />
    ${running && !answer.first && html`<p class="waiting">…</p>`}
    ${answer.calls.length > 0 && html`<${Calls} calls=${answer.calls} ready=${isLast && !busy && answer.finish === 'tool_calls'} give=${(given) => results(turn, given)} />`}
    ${answer.error && html`<p class="problem" role="alert">${answer.error}</p>`}
    <${Figures} answer=${answer}>
      ${isLast && !busy && html`<button type="button" class="quiet" onClick=${regenerate}>Again</button>`}
    <//>
  </article>`;
}

export function Figures({ answer, children }) {
  const { ttft, tokens, rate } = speed(answer);
  const parts = [
    ttft !== null && `first token ${ttft.toFixed(0)} ms`,
    tokens > 0 && `${tokens} tokens`,
    rate !== null && `${rate.toFixed(1)} tokens/s`,
    answer.usage?.prompt_tokens_details?.cached_tokens > 0 && `${answer.usage.prompt_tokens_details.cached_tokens} of ${answer.usage.prompt_tokens} prompt tokens cached`,
    answer.finish && answer.finish !== 'stop' && `ended: ${answer.finish}`,
    answer.moves.length > 0 && `moved ${answer.moves.length === 1 ? 'once' : `${answer.moves.length} times`}`,
  ].filter(Boolean);
  return html`<footer class="figures"><span>${parts.join(' · ')}</span>${children}</footer>`;
}

function Calls({ calls, ready, give }) {
  const [given, setGiven] = useState([]);
  const submit = (event) => {
    event.preventDefault();
    give(given);
  };
  return html`<form class="calls" onSubmit=${submit}>
    ${calls.map((call, at) => html`<section key=${at}>
      <h3><code>${call.name}</code></h3>
      <pre tabindex="0">${pretty(call.arguments)}</pre>
      ${ready && html`<label>Result<textarea rows="2" value=${given[at] ?? ''} onInput=${({ currentTarget }) => setGiven(Object.assign([...given], { [at]: currentTarget.value }))} /></label>`}
    </section>`)}
    ${ready && html`<button>Send results</button>`}
  </form>`;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function Composer({ busy, send, stop }) {
  const [text, setText] = useState('');
  const area = useRef();
  useEffect(() => area.current?.focus(), []);
  const submit = (event) => {
    event.preventDefault();
    if (busy || !text.trim()) return;
    send(text);
    setText('');
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
