// The API's description as a page: each operation with its fields, limits and answers, and a form that sends
// it.
import { html, render, useEffect, useMemo, useState } from './html.js';
import { Key } from './key-form.js';
import * as kept from './kept.js';
import { Fields, Shape, Words } from './schema.js';
import { get, key } from './server.js';
import { Try, curl } from './try.js';

const METHODS = ['get', 'post', 'delete', 'put', 'patch'];

/// The operations by the parts of the API, in the document's order.
function partsOf(document) {
  const all = Object.entries(document.paths).flatMap(([path, methods]) =>
    METHODS.filter((method) => methods[method]).map((method) => ({ path, method, ...methods[method] })));
  return document.tags.map((tag) => ({ ...tag, operations: all.filter(({ tags }) => tags.includes(tag.name)) }));
}

const fits = (words, { path, summary, operationId }) =>
  words.every((word) => `${path} ${summary} ${operationId}`.toLowerCase().includes(word));

function Page() {
  const [described, setDescribed] = useState(null);
  const [problem, setProblem] = useState(null);
  const [filter, setFilter] = useState('');
  const [opened, setOpened] = useState(decodeURIComponent(location.hash.slice(1)));
  useEffect(() => {
    const theme = kept.theme();
    if (theme) document.documentElement.dataset.theme = theme;
    const moved = () => setOpened(decodeURIComponent(location.hash.slice(1)));
    addEventListener('hashchange', moved);
    return () => removeEventListener('hashchange', moved);
  }, []);
  const load = () => get('openapi.json').then((document) => (setDescribed(document), setProblem(null)), setProblem);
  useEffect(() => void load(), []);
  useEffect(() => document.getElementById(opened)?.scrollIntoView(), [described]);

  const parts = useMemo(() => (described ? partsOf(described) : []), [described]);
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = parts.map((part) => ({ ...part, operations: part.operations.filter((one) => fits(words, one)) })).filter(({ operations }) => operations.length);
  return html`
    <a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), document.getElementById('main').focus())}>To the content</a>
    <header class="top">
      <h1>Skein: the API</h1>
      <nav aria-label="Pages"><a href="../ui/">Chat</a><a href="../ui/#cluster">Cluster</a><a href="../openapi.json" download>openapi.json</a></nav>
      <span class="space"></span>
      ${described && html`<span class="dim">${described.info.version}</span>`}
    </header>
    <main id="main" tabindex="-1" class="docs">
      ${problem?.status === 401
        ? html`<${Key} sentence=${key.read() ? problem.message : 'This server asks for an API key.'} done=${load} />`
        : problem && html`<p class="problem" role="alert">${problem.message} <button type="button" class="quiet" onClick=${load}>Try again</button></p>`}
      ${described && html`
        <p>${described.info.description} Point a client of OpenAI's API at <code>${new URL('../v1', document.baseURI).href}</code>.</p>
        <label class="filter">Paths and words<input type="search" value=${filter} onInput=${(event) => setFilter(event.currentTarget.value)} /></label>
        <p class="heard" role="status">${`${shown.reduce((sum, { operations }) => sum + operations.length, 0)} operations`}</p>
        ${shown.map((part) => html`<section key=${part.name} aria-label=${part.name}>
          <h2>${part.name}</h2><p class="dim">${part.description}</p>
          ${part.operations.map((one) => html`<${Operation} key=${one.operationId} document=${described} operation=${one} isOpened=${opened === one.operationId} />`)}
        </section>`)}
        ${!shown.length && html`<p class="empty">No path has these words.</p>`}`}
    </main>`;
}

function Operation({ document: all, operation, isOpened }) {
  const [isOpen, setOpen] = useState(isOpened);
  useEffect(() => void (isOpened && setOpen(true)), [isOpened]);
  const { path, method, summary, operationId } = operation;
  return html`<details class="operation" id=${operationId} open=${isOpen} onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary><span class=${`method ${method}`}>${method.toUpperCase()}</span> <code>${path}</code> <span class="dim">${summary}</span></summary>
    ${isOpen && html`<${Told} all=${all} operation=${operation} />`}
  </details>`;
}

function Told({ all, operation }) {
  const parameters = (operation.parameters ?? []).map((one) => resolved(all, one));
  const [media, body] = Object.entries(operation.requestBody?.content ?? {})[0] ?? [];
  const isLocked = operation.security?.length > 0;
  return html`<div class="told">
    <p class="dim"><a href=${`#${operation.operationId}`}>Link</a>${isLocked && ' · needs a key'}</p>
    ${parameters.length > 0 && html`<h3>Path, query and headers</h3><div class="table" tabindex="0" role="region" aria-label="Path, query and headers"><table><thead><tr><th scope="col">Name</th><th scope="col">In</th><th scope="col">Value</th><th scope="col">What it does</th></tr></thead><tbody>
      ${parameters.map((one) => html`<tr><th scope="row"><code>${one.name}</code>${one.required && html`<span class="required" title="Required">*</span>`}</th><td>${one.in}</td><td><${Shape} all=${all} schema=${one.schema} /></td><td class="wide"><${Words} text=${one.description} /></td></tr>`)}
    </tbody></table></div>`}
    ${body && html`<h3>Body <span class="dim">${media}</span></h3><${Fields} all=${all} schema=${body.schema} />`}
    <h3>Answers</h3>
    <ul class="answers">${Object.entries(operation.responses).map(([status, answer]) => html`<${Answer} all=${all} status=${status} answer=${resolved(all, answer)} />`)}</ul>
    <h3>On a command line</h3>
    <pre class="curl" tabindex="0" role="region" aria-label="curl">${curl(operation, body, media)}</pre>
    <${Try} operation=${operation} parameters=${parameters} body=${body} media=${media} />
  </div>`;
}

function Answer({ all, status, answer }) {
  const contents = Object.entries(answer.content ?? {});
  return html`<li><b class=${status < 400 ? 'good' : 'bad'}>${status}</b> ${answer.description}
    ${contents.map(([media, { schema }]) => html`<details><summary>${media}</summary>${schema.description && html`<p class="dim"><${Words} text=${schema.description} /></p>`}<${Fields} all=${all} schema=${schema} /></details>`)}
  </li>`;
}

export function resolved(all, one) {
  const path = one?.$ref?.slice(2).split('/');
  return path ? path.reduce((at, name) => at[name], all) : one;
}

render(html`<${Page} />`, document.getElementById('app'));
