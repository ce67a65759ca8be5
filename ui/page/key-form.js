// Asks for the API key.
import { html, useState } from './html.js';
import { isKey, key } from './server.js';

/// `done` is called when there is one, or none any more.
export function Key({ sentence, done }) {
  const [problem, setProblem] = useState('');
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const given = form.get('key').trim();
    if (!isKey(given)) {
      setProblem('A key has letters, digits and signs of ASCII only, and no spaces.');
      return;
    }
    setProblem('');
    key.write(given, form.get('keep') === 'on');
    done();
  };
  return html`<form class="key" onSubmit=${submit}>
    <p role="alert">${sentence}</p>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    <label>API key<input name="key" type="password" autocomplete="off" required /></label>
    <label class="check"><input name="keep" type="checkbox" /> Keep it on this computer (otherwise until the tab is closed)</label>
    <div class="bar"><button>Use it</button>
      ${key.read() && html`<button type="button" class="quiet" onClick=${() => (key.write(''), done())}>Forget the key</button>`}</div>
  </form>`;
}
