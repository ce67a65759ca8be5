// The last requests: what each was given, where it ran, and where its time went.
import { clock } from './cluster.js';
import { html, useState } from './html.js';

export function Requests({ requests }) {
  const [open, setOpen] = useState(null);
  return html`<section aria-labelledby="requests"><h2 id="requests">Last requests</h2>
    <div class="table" tabindex="0" role="region" aria-label="Table of requests"><table class="requests">
      <thead><tr><th>Time</th><th>Request</th><th>Model</th><th>Status</th><th class="number">Prompt</th><th class="number">Cached</th><th class="number">Output</th>
        <th class="number">First token</th><th>Worker</th></tr></thead>
      <tbody>${requests.map((request) => {
        const isOpen = open === request.id;
        return html`
          <tr key=${request.id} class=${isOpen ? 'open' : ''}>
            <td>${clock(request.time)}</td>
            <th scope="row"><button type="button" class="quiet" aria-expanded=${isOpen} onClick=${() => setOpen(isOpen ? null : request.id)}>${request.id}</button></th>
            <td>${request.model}</td><td><span class=${`status ${request.status < 400 ? 'good' : 'bad'}`}>${request.code ?? request.outcome}</span></td>
            <td class="number">${request.prompt_tokens}</td><td class="number">${request.cached_tokens}</td><td class="number">${request.output_tokens}</td>
            <td class="number">${request.ttft_seconds === null ? '' : `${(1000 * request.ttft_seconds).toFixed(0)} ms`}</td>
            <td>${request.workers.join(' → ')}</td>
          </tr>
          ${isOpen && html`<tr key=${`${request.id}.more`}><td colspan="9"><${Waterfall} phases=${request.phases} />${(request.receipts ?? []).map((receipt) => html`<${Receipt} receipt=${receipt} />`)}</td></tr>`}`;
      })}</tbody></table></div>
    ${requests.length === 0 && html`<p class="empty">None yet.</p>`}
  </section>`;
}

function Waterfall({ phases }) {
  const end = Math.max(1e-9, ...phases.map(({ end }) => end));
  return html`<ol class="waterfall" aria-label="Where the time went">${phases.map(({ name, worker, start, end: to }) => html`<li>
    <span>${name}${worker ? ` (${worker})` : ''}</span>
    <svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class=${name} x=${(100 * start / end).toFixed(2)} width=${Math.max(0.3, 100 * (to - start) / end).toFixed(2)} height="8" /></svg>
    <span class="number">${(1000 * (to - start)).toFixed(1)} ms</span></li>`)}</ol>`;
}

function Receipt({ receipt }) {
  const terms = ['queue', 'prefill', 'blocks', 'seats', 'step', 'slowdown', 'adapter'];
  return html`<div class="table"><table><caption>Why this worker: predicted time to the first token, ms (${receipt.candidates} candidates)</caption>
    <thead><tr><th>Worker</th><th class="number">Cached</th><th class="number">Sum</th>${terms.map((term) => html`<th class="number">${term}</th>`)}</tr></thead>
    <tbody>${receipt.best.map((one) => html`<tr class=${one.chosen ? 'chosen' : ''}><th scope="row">${one.worker}${one.chosen ? ' ✓' : ''}</th>
      <td class="number">${one.overlap_tokens}</td><td class="number">${(1000 * one.seconds).toFixed(1)}</td>${terms.map((term) => html`<td class="number">${(1000 * one[term]).toFixed(1)}</td>`)}</tr>`)}</tbody></table></div>`;
}
