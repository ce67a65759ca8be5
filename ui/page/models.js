// A row for each of several models: where it is, and what moves it.
import { html, useState } from './html.js';
import { call } from './server.js';

/// What an administrator may ask for, by where a model is.
const ORDERS = { unloaded: ['load', 'Load'], loaded: ['unload', 'Unload'] };

export function Models({ models, admin }) {
  const [problem, setProblem] = useState('');
  const move = (id, order) => async () => {
    const moved = call(`models/${order}`, { body: { model: id } });
    await moved.then(() => setProblem(''), (error) => setProblem(error.message));
  };
  return html`<section aria-labelledby="models"><h2 id="models">Models</h2>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    <div class="table" tabindex="0" role="region" aria-label="Table of models"><table class="models">
      <thead><tr><th>Model</th><th>State</th><th class="number">Requests</th><th class="number">Memory</th>${admin && html`<th><span class="heard">Actions</span></th>`}</tr></thead>
      <tbody>${models.map(({ id, status, memory_bytes: bytes }) => {
        const [order, label] = ORDERS[status.value] ?? [];
        const kind = status.failed ? 'lost' : status.value === 'loaded' ? 'ready' : 'draining';
        return html`<tr key=${id}>
          <th scope="row">${id}</th>
          <td title=${status.reason ?? ''}><span class=${`state ${kind}`}>${status.value}</span></td>
          <td class="number">${status.requests}</td>
          <td class="number">${(bytes / 2 ** 30).toFixed(2)} GiB</td>
          ${admin && html`<td>${order && html`<button type="button" class="quiet" onClick=${move(id, order)}>${label}</button>`}</td>`}
        </tr>`;
      })}</tbody></table></div>
  </section>`;
}
