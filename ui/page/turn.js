// One turn of a conversation: a message, an answer or the result of a tool.
import { speed } from './answer.js';
import { Caught } from './caught.js';
import { Component, html, useMemo, useState } from './html.js';
import { Markdown, Move, Plain } from './markdown.js';

/// Drawn again only when something of it changed: a conversation may have hundreds.
export class Turn extends Component {
  shouldComponentUpdate({ turn, at, isLast, running, busy }) {
    const now = this.props;
    return turn !== now.turn || at !== now.at || isLast !== now.isLast || running !== now.running || busy !== now.busy;
  }

  render({ turn, ...rest }) {
    const Kind = { user: Message, tool: Result }[turn.role] ?? Answer;
    return html`<${Caught} instead=${(error) => html`<p class="problem" role="alert">This turn cannot be shown: ${error.message}</p>`}><${Kind} turn=${turn} ...${rest} /><//>`;
  }
}

const Result = ({ turn }) => html`<article class="turn tool" aria-label="Result of a tool"><pre>${turn.text}</pre></article>`;

function Message({ turn, at, busy, deeds }) {
  const [draft, setDraft] = useState(null);
  const save = (event) => {
    event.preventDefault();
    if (deeds.current.edit(at, draft)) setDraft(null);
  };
  return html`<article class="turn user" aria-label="You">
    ${draft === null
      ? html`<div class="prose plain">${turn.text}</div><footer><button type="button" class="quiet" disabled=${busy} onClick=${() => setDraft(turn.text)}>Edit</button></footer>`
      : html`<form onSubmit=${save}><textarea rows="3" aria-label="Your message" value=${draft} onInput=${(event) => setDraft(event.currentTarget.value)} />
          <button disabled=${busy}>Send again</button> <button type="button" class="quiet" onClick=${() => setDraft(null)}>Cancel</button></form>`}
  </article>`;
}

function Answer({ turn, isLast, running, busy, deeds }) {
  const { answer } = turn;
  const inside = useInside(answer.moves);
  return html`<article class="turn assistant" aria-label="Answer" aria-busy=${running}>
    ${answer.reasoning && html`<details class="reasoning"><summary>Reasoning${running && !answer.content ? ' …' : ''}</summary>
      <${Plain} text=${answer.reasoning} moves=${inside.reasoning} /></details>`}
    <${Markdown} text=${answer.content} moves=${inside.content} />
    ${running && !answer.first && html`<p class="waiting">…</p>`}
    ${answer.calls.length > 0 && html`<${Calls} calls=${answer.calls} moves=${inside.calls} ready=${isLast && !busy && answer.finish === 'tool_calls'} give=${(given) => deeds.current.results(turn, given)} />`}
    ${answer.error && html`<p class="problem" role="alert">${answer.error}</p>`}
    <${Figures} answer=${answer}>
      ${isLast && !busy && html`<button type="button" class="quiet" onClick=${() => deeds.current.regenerate()}>Again</button>`}
    <//>
  </article>`;
}

/// The moves of one part, the same list for the same moves: Markdown is read again when its text or its moves
/// change.
function useInside(moves) {
  return useMemo(() => {
    const of = (where) => moves.filter(({ inside }) => inside === where);
    return { content: of('content'), reasoning: of('reasoning'), calls: of('calls') };
  }, [moves]);
}

export function Figures({ answer, children }) {
  const { ttft, tokens, rate } = speed(answer);
  const cached = answer.usage?.prompt_tokens_details.cached_tokens;
  const parts = [
    ttft !== null && `first token ${ttft.toFixed(0)} ms`,
    tokens > 0 && `${tokens} tokens`,
    rate !== null && `${rate.toFixed(1)} tokens/s`,
    cached > 0 && `${cached} of ${answer.usage.prompt_tokens} prompt tokens cached`,
    answer.finish && answer.finish !== 'stop' && `ended: ${answer.finish}`,
    answer.moved > 0 && `moved ${answer.moved === 1 ? 'once' : `${answer.moved} times`}`,
  ].filter(Boolean);
  return html`<footer class="figures"><span>${parts.join(' · ')}</span>${children}</footer>`;
}

/// Calls of tools, each after the moves before it.
function Calls({ calls, moves, ready, give }) {
  const [given, setGiven] = useState([]);
  const submit = (event) => {
    event.preventDefault();
    give(given);
  };
  const marks = (at) => {
    const here = moves.filter((move) => move.at === at);
    return here.length > 0 && html`<p>${here.map((move) => html`<${Move} move=${move} />`)}</p>`;
  };
  return html`<form class="calls" onSubmit=${submit}>
    ${calls.map((call, at) => html`${marks(at)}<section key=${at}>
      <h3><code>${call.name}</code></h3>
      <pre tabindex="0">${pretty(call.arguments)}</pre>
      ${ready && html`<label>Result<textarea rows="2" value=${given[at] ?? ''} onInput=${({ currentTarget }) => setGiven(Object.assign([...given], { [at]: currentTarget.value }))} /></label>`}
    </section>`)}
    ${marks(calls.length)}
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
