// The page: which part is open, which model is used, the key. Everything it shows comes from the server that
// served it.
import { Caught } from './caught.js';
import { Chat } from './chat.js';
import { Cluster } from './cluster.js';
import { Completion } from './completion.js';
import { html, render, useEffect, useState } from './html.js';
import { Key } from './key-form.js';
import { key, models as named } from './server.js';
import * as kept from './kept.js';

/// The last field: whether it goes on while another part is shown, as an answer that is being written does.
const PARTS = [['chat', 'Chat', Chat, true], ['completion', 'Completion', Completion, true], ['cluster', 'Cluster', Cluster, false]];
const partOf = (hash) => PARTS.find(([name]) => `#${name}` === hash)?.[0] ?? 'chat';

/// A server that answers without a key may have one for orders.
const KEY_ADVICE = 'A key is sent with each request. An administrator\'s can drain workers and replace the model.';

function Page() {
  const [part, setPart] = useState(partOf(location.hash));
  const [models, setModels] = useState([]);
  // Not known until the server has answered.
  const [model, setModel] = useState(null);
  const [problem, setProblem] = useState(null);
  const [asksKey, setAsksKey] = useState(false);
  const [theme, setTheme] = useState(kept.theme);

  useEffect(() => {
    const moved = () => setPart(partOf(location.hash));
    addEventListener('hashchange', moved);
    return () => removeEventListener('hashchange', moved);
  }, []);
  useEffect(() => {
    kept.write('theme', theme);
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  }, [theme]);
  const load = () => named().then((names) => {
    setModels(names);
    setModel((given) => (names.includes(given) ? given : names[0] ?? ''));
    setProblem(names.length ? null : { message: 'There is no model for this key. Ask who runs the server for one, or use another key.' });
    setAsksKey(false);
  }, setProblem);
  useEffect(() => void load(), []);

  const needsKey = problem?.status === 401;
  const isLocked = needsKey || asksKey;
  const next = { '': 'dark', dark: 'light', light: '' }[theme];
  return html`
    <a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), document.getElementById('main').focus())}>To the content</a>
    <header class="top">
      <h1>Skein</h1>
      <nav aria-label="Parts">${PARTS.map(([name, label]) => html`<a href=${`#${name}`} aria-current=${part === name ? 'page' : undefined}>${label}</a>`)}</nav>
      <span class="space"></span>
      ${models.length > 1 && html`<label class="model"><span>Model</span><select value=${model} onChange=${(event) => setModel(event.currentTarget.value)}>
        ${models.map((name) => html`<option value=${name}>${name}</option>`)}</select></label>`}
      ${models.length === 1 && html`<span class="model" title=${model}>${model}</span>`}
      <button type="button" class="quiet" aria-expanded=${asksKey} onClick=${() => setAsksKey(!asksKey)}>Key</button>
      <button type="button" class="quiet" onClick=${() => setTheme(next)} aria-label=${`Colours: ${theme || 'as the system'}. Change.`}>${{ '': '◐', dark: '●', light: '○' }[theme]}</button>
    </header>
    <main id="main" tabindex="-1">
      ${isLocked && html`<${Key} sentence=${needsKey ? (key.read() ? problem.message : 'This server asks for an API key.') : KEY_ADVICE} done=${load} />`}
      ${problem && !isLocked && html`<p class="problem" role="alert">${problem.message} <button type="button" class="quiet" onClick=${load}>Try again</button></p>`}
      ${PARTS.map(([name, , Part, staysOpen]) => (staysOpen || (name === part && !isLocked)) && html`<div key=${name} class="part" hidden=${isLocked || name !== part}><${Caught} instead=${Broken}><${Part} model=${model} /><//></div>`)}
    </main>`;
}

/// Nothing that the browser keeps may make the page useless for good.
function Broken(error) {
  const forget = () => {
    kept.forgetAll();
    location.reload();
  };
  return html`<p class="problem" role="alert">The page cannot show this: ${error.message} <button type="button" class="quiet" onClick=${() => location.reload()}>Load it again</button>${' '}
    <button type="button" class="quiet" onClick=${forget}>Forget the conversations</button></p>`;
}

render(html`<${Caught} instead=${Broken}><${Page} /><//>`, document.getElementById('app'));
