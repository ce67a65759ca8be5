// Sends an operation to the server that served the page, and shows what comes back as it comes.
import { html, useEffect, useRef, useState } from './html.js';
import { key } from './server.js';

/// Most characters of an answer that are shown.
const MAX_SHOWN = 200_000;
/// Headers of an answer that say something about it.
const TOLD = ['content-type', 'x-request-id', 'x-ignored-params', 'x-skein-receipt', 'x-should-retry', 'retry-after', 'etag'];

const exampleOf = (body) => (body?.example === undefined ? '' : JSON.stringify(body.example, null, 2));
const rooted = (path) => new URL(`..${path}`, document.baseURI);
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/// A command that sends the operation's example.
export function curl({ path, method, security }, body, media) {
  const lines = [`curl ${method === 'get' ? '' : `-X ${method.toUpperCase()} `}${quoted(decodeURI(rooted(path).href))}`];
  if (security?.length) lines.push(`-H "Authorization: Bearer $KEY"`);
  if (media === 'multipart/form-data') lines.push("-F purpose=batch -F 'file=@requests.jsonl'");
  else if (body) lines.push(`-H 'content-type: ${media}'`, `-d ${quoted(JSON.stringify(body.example ?? {}))}`);
  return lines.join(' \\\n  ');
}

export function Try({ operation, parameters, body, media }) {
  const [values, setValues] = useState({});
  const [text, setText] = useState(exampleOf(body));
  const [answer, setAnswer] = useState(null);
  const running = useRef(null);
  useEffect(() => () => running.current?.abort(), []);
  // A form of files is for a command line.
  if (media === 'multipart/form-data') return null;

  const optional = parameters.filter(({ required }) => !required);
  const input = (one) => html`<label key=${one.in + one.name}><span><code>${one.name}</code> <span class="dim">${one.in}</span></span>
    <input value=${values[one.name] ?? ''} required=${one.required} onInput=${(event) => setValues({ ...values, [one.name]: event.currentTarget.value })} /></label>`;

  async function send(event) {
    event.preventDefault();
    const control = new AbortController();
    running.current = control;
    const began = performance.now();
    setAnswer({ running: true, text: '' });
    const shown = (more) => setAnswer((before) => ({ ...before, ...more }));
    try {
      const response = await fetch(address(operation.path, parameters, values), {
        method: operation.method.toUpperCase(),
        signal: control.signal,
        headers: headers(parameters, values, body && text && media),
        body: body && text ? text : undefined,
      });
      shown({ status: response.status, headers: TOLD.filter((name) => response.headers.has(name)).map((name) => [name, response.headers.get(name)]) });
      const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
      let whole = '';
      for (let next; reader && !(next = await reader.read()).done && whole.length < MAX_SHOWN; ) {
        whole += next.value;
        shown({ text: whole });
      }
      control.abort();
      shown({ text: pretty(whole.slice(0, MAX_SHOWN)), running: false, seconds: (performance.now() - began) / 1000 });
    } catch (error) {
      shown({ running: false, problem: error.name === 'AbortError' ? 'Stopped.' : 'The server cannot be reached.' });
    }
  }
  return html`<h3>Try it</h3>
    <form class="try" onSubmit=${send}>
      ${parameters.filter(({ required }) => required).map(input)}
      ${optional.length > 0 && html`<details><summary>Query and headers</summary><div class="optional">${optional.map(input)}</div></details>`}
      ${body && html`<label>Body<textarea rows=${Math.min(14, text.split('\n').length + 1)} spellcheck=${false} value=${text} onInput=${(event) => setText(event.currentTarget.value)}></textarea></label>`}
      <p><button disabled=${answer?.running}>Send</button> ${answer?.running && html`<button type="button" class="quiet" onClick=${() => running.current.abort()}>Stop</button>`}</p>
    </form>
    ${answer && html`<div class="came" role="status">
      ${answer.problem && html`<p class="problem">${answer.problem}</p>`}
      ${answer.status && html`<p><b class=${answer.status < 400 ? 'good' : 'bad'}>${answer.status}</b> ${answer.seconds !== undefined && html`<span class="dim">${answer.seconds.toFixed(2)} s</span>`}</p>`}
      ${answer.headers?.length > 0 && html`<dl>${answer.headers.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`}
      ${answer.text && html`<pre tabindex="0" role="region" aria-label="Answer">${answer.text}</pre>`}
    </div>`}`;
}

function address(path, parameters, values) {
  // A model's name may have slashes, which stay.
  const filled = path.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(values[name] ?? '').replaceAll('%2F', '/'));
  const url = rooted(filled);
  for (const { name, in: place } of parameters) if (place === 'query' && values[name]) url.searchParams.set(name, values[name]);
  return url;
}

function headers(parameters, values, media) {
  const given = parameters.filter((one) => one.in === 'header' && values[one.name]).map(({ name }) => [name, values[name]]);
  if (media) given.push(['content-type', media]);
  if (key.read()) given.push(['authorization', `Bearer ${key.read()}`]);
  return Object.fromEntries(given);
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
