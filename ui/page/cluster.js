// The cluster: workers, requests and moves as they happen, from one stream of events.
import { html, useEffect, useRef, useState } from './html.js';
import { Requests } from './requests.js';
import { Models } from './models.js';
import { Workers } from './workers.js';
import { get, stream } from './server.js';

/// Pause before the stream of events is opened again after it broke, ms.
const AGAIN_AFTER = 1000;
/// Most moves shown; the last come first.
const MAX_MOVES = 5;
/// Points of a line: one a snapshot, so about two minutes.
const MAX_POINTS = 120;

export function Cluster() {
  const [snapshot, setSnapshot] = useState(null);
  const [problem, setProblem] = useState(null);
  const history = useRef(new Map());
  const visible = useVisible();

  useEffect(() => {
    // A browser has few connections to one server: those of hidden tabs would leave none for requests.
    if (!visible) return undefined;
    const abort = new AbortController();
    (async () => {
      while (!abort.signal.aborted) {
        try {
          for await (const { event, data } of stream('v1/cluster/events', { signal: abort.signal })) {
            if (event !== 'snapshot') continue;
            remember(history.current, data);
            setSnapshot(data);
            setProblem(null);
          }
          setProblem({ message: 'The connection ended; connecting again.' });
        } catch (error) {
          if (error.name === 'AbortError') return;
          setProblem(error);
          if (error.status === 401 || error.status === 403 || error.status === 404) return;
        }
        await new Promise((resolve) => setTimeout(resolve, AGAIN_AFTER));
      }
    })();
    return () => abort.abort();
  }, [visible]);

  return html`<div class="cluster">
    ${problem && html`<p class="problem" role="alert">${problem.message}</p>`}
    ${!snapshot && !problem && html`<p class="empty">Connecting …</p>`}
    ${snapshot && html`
      <${Totals} snapshot=${snapshot} history=${history.current} />
      ${snapshot.models && html`<${Models} models=${snapshot.models} admin=${snapshot.admin} />`}
      <${Moves} moves=${snapshot.moves} />
      <${Workers} workers=${snapshot.workers} history=${history.current} admin=${snapshot.admin} />
      ${snapshot.may_swap && html`<${Swap} version=${snapshot.model_version} />`}
      <${Requests} requests=${snapshot.requests} />`}
  </div>`;
}

/// Whether somebody may see the page.
function useVisible() {
  const [visible, setVisible] = useState(!document.hidden);
  useEffect(() => {
    const changed = () => setVisible(!document.hidden);
    document.addEventListener('visibilitychange', changed);
    return () => document.removeEventListener('visibilitychange', changed);
  }, []);
  return visible;
}

/// What `after` counts more than `before`, a second. A worker that started again counts from 0.
export function rate(before, after, name) {
  const seconds = before ? after.time - before.time : 0;
  return seconds > 0 && after[name] >= before[name] ? (after[name] - before[name]) / seconds : 0;
}

/// Adds the rates of this snapshot to those of the last minutes.
function remember(history, { time, totals, workers }) {
  const counted = [['', totals], ...workers.map((worker) => [worker.id, worker])];
  for (const [name, counts] of counted) {
    const known = history.get(name) ?? { points: [], last: null };
    const now = { time, output_tokens: counts.output_tokens, requests: counts.requests };
    if (known.last) known.points.push(rate(known.last, now, 'output_tokens'));
    if (known.points.length > MAX_POINTS) known.points.shift();
    known.requests = rate(known.last, now, 'requests');
    known.last = now;
    history.set(name, known);
  }
  const names = new Set(counted.map(([name]) => name));
  for (const name of history.keys()) if (!names.has(name)) history.delete(name);
}

function Totals({ snapshot, history }) {
  const { totals, workers } = snapshot;
  const { points = [], requests = 0 } = history.get('') ?? {};
  const ready = workers.filter((worker) => worker.ready).length;
  const cached = totals.prompt_tokens ? `${Math.round(100 * totals.cached_prompt_tokens / totals.prompt_tokens)}%` : '–';
  const tiles = [
    ['Workers ready', `${ready} of ${workers.length}`],
    ['Requests running', totals.requests_in_flight],
    ['Requests/s', requests.toFixed(1)],
    ['Tokens/s', Math.round(points.at(-1) ?? 0), html`<${Line} points=${points} />`],
    ['Prompt tokens cached', cached],
    ['Moves', totals.moves],
  ];
  return html`<dl class="totals">${tiles.map(([name, value, more]) => html`<div><dt>${name}</dt><dd>${value}</dd>${more}</div>`)}</dl>`;
}

/// A small line of recent values; its height is the largest of them.
export function Line({ points = [] }) {
  const [width, height] = [120, 24];
  const most = Math.max(1e-9, ...points);
  const path = points.map((value, at) => `${((at + MAX_POINTS - points.length) / (MAX_POINTS - 1) * width).toFixed(1)},${(height - 1 - value / most * (height - 2)).toFixed(1)}`).join(' ');
  return html`<svg class="line" viewBox=${`0 0 ${width} ${height}`} preserveAspectRatio="none" aria-hidden="true"><polyline points=${path} /></svg>`;
}

function Moves({ moves }) {
  return html`<section aria-labelledby="moves"><h2 id="moves">Moves</h2>
    ${moves.length === 0
      ? html`<p class="empty">No stream has moved lately.</p>`
      : html`<ol class="moves">${moves.slice(0, MAX_MOVES).map((move) => html`<li key=${`${move.request}${move.time}`}>
          <time>${clock(move.time)}</time> <code>${move.request}</code> <span>${move.from ?? '?'}</span> → <span>${move.to ?? '?'}</span>${' '}
          <span class="dim">after ${move.tokens} tokens, in ${(1000 * move.gap_seconds).toFixed(0)} ms${move.reason && `: ${move.reason}`}</span></li>`)}</ol>`}
  </section>`;
}

export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();

function Swap({ version }) {
  const [answer, setAnswer] = useState('');
  const [busy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    const path = new FormData(event.currentTarget).get('path').trim();
    setBusy(true);
    setAnswer('Loading the new version; the running one serves on.');
    await get('update_weights_from_disk', { body: path ? { model_path: path } : {} }).then((done) => setAnswer(done.message), (error) => setAnswer(error.message));
    setBusy(false);
  };
  return html`<section aria-labelledby="swap"><h2 id="swap">Version of the model</h2>
    <p>New requests go to <code>${version}</code>.</p>
    <form class="row" onSubmit=${submit}><label>Directory on the server; empty = read the running one again<input name="path" /></label><button disabled=${busy}>Swap</button></form>
    ${answer && html`<p role="status">${answer}</p>`}
  </section>`;
}
