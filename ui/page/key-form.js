// Asks for the API key.
import { html } from './html.js';
import { key } from './server.js';

/// `done` is called when there is one.
export function Key({ sentence, done }) {
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    key.write(form.get('key').trim(), form.get('keep') === 'on');
    done();
  };
  return html`<form class="key" onSubmit=${submit}>
    <p role="alert">${sentence}</p>
    <label>API key<input name="key" type="password" autocomplete="off" required /></label>
    <label class="check"><input name="keep" type="checkbox" /> Keep it on this computer (otherwise until the tab is closed)</label>
    <button>Use it</button>
  </form>`;
}
