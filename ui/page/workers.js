// A row for each worker.
import { Line } from './cluster.js';
import { html, useState } from './html.js';
import { call } from './server.js';

/// Number of workers from which rows stand closer.
const DENSE_FROM = 12;

const KINDS = [['held', 'held by running sequences'], ['shared', 'held by several'], ['cached', 'cached'], ['free', 'free']];

export function Workers({ workers, history, admin }) {
  const [problem, setProblem] = useState('');
  const drain = ({ id, state }) => async () => {
    const on = state !== 'draining';
    if (on && !confirm(`Drain ${id}? Its streams move to other workers.`)) return;
    const order = call(`v1/cluster/workers/${encodeURIComponent(id)}/drain`, { body: { on } });
    await order.then(() => setProblem(''), (error) => setProblem(error.message));
  };
  return html`<section aria-labelledby="workers"><h2 id="workers">Workers</h2>
    <ul class="legend">${KINDS.map(([name, what]) => html`<li><i class=${name}></i>${what}</li>`)}</ul>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    <div class="table" tabindex="0" role="region" aria-label="Table of workers"><table class=${workers.length > DENSE_FROM ? 'workers dense' : 'workers'}>
      <thead><tr><th>Worker</th><th>State</th><th>KV blocks</th><th class="number">Running</th><th class="number">Waiting</th><th class="number">Step</th>
        <th class="number">Tokens/s</th><th><span class="heard">Last minutes</span></th><th class="number">Hits</th><th>Version</th>${admin && html`<th><span class="heard">Actions</span></th>`}</tr></thead>
      <tbody>${workers.map((worker) => {
        const { points = [] } = history.get(worker.id) ?? {};
        const kind = worker.ready ? 'ready' : worker.state === 'draining' ? 'draining' : 'lost';
        return html`<tr key=${worker.id}>
          <th scope="row" title=${worker.address}>${worker.id}</th>
          <td title=${worker.state}><span class=${`state ${kind}`}>${worker.state.slice(0, 40)}</span></td>
          <td><${Blocks} blocks=${worker.blocks} /></td>
          <td class="number">${worker.running}</td><td class="number">${worker.waiting}</td>
          <td class="number">${worker.step_seconds ? `${(1000 * worker.step_seconds).toFixed(1)} ms` : ''}</td>
          <td class="number">${Math.round(points.at(-1) ?? 0)}</td><td><${Line} points=${points} /></td>
          <td class="number">${worker.prompt_tokens ? `${Math.round(100 * worker.cached_prompt_tokens / worker.prompt_tokens)}%` : ''}</td>
          <td>${worker.model_version && html`<code title=${worker.model_version}>${worker.model_version.slice(0, 8)}</code>`}</td>
          ${admin && html`<td>${!worker.router && html`<button type="button" class="quiet" disabled=${!worker.ready && worker.state !== 'draining'} onClick=${drain(worker)}>${worker.state === 'draining' ? 'Take requests' : 'Drain'}</button>`}</td>`}
        </tr>`;
      })}</tbody></table></div>
  </section>`;
}

function Blocks({ blocks }) {
  const text = KINDS.map(([name]) => `${blocks[name]} ${name}`).join(', ');
  let at = 0;
  return html`<svg class="blocks" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label=${text}><title>${text}</title>
    ${KINDS.map(([name]) => {
      const [from, width] = [at, 100 * blocks[name] / Math.max(1, blocks.total)];
      at += width;
      return html`<rect class=${name} x=${from.toFixed(2)} width=${width.toFixed(2)} height="8" />`;
    })}</svg>`;
}
