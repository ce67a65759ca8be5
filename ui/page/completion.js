// Completion: one text that the model continues.
import { generate } from './generation.js';
import { html, useEffect, useState } from './html.js';
import { Plain } from './markdown.js';
import { Sampling, fields } from './sampling.js';
import { Figures } from './turn.js';
import * as kept from './kept.js';

export function Completion({ model }) {
  const [prompt, setPrompt] = useState(() => kept.text('prompt'));
  const [settings, setSettings] = useState(() => kept.settings('completion', { max_tokens: '128' }));
  const [answer, setAnswer] = useState(null);
  const [abort, setAbort] = useState(null);
  const [problem, setProblem] = useState('');
  useEffect(() => void kept.write('completion', settings), [settings]);
  useEffect(() => void kept.write('prompt', prompt), [prompt]);

  async function complete(event) {
    event.preventDefault();
    setProblem('');
    let body;
    try {
      body = { ...fields(settings, false), model, prompt };
    } catch (error) {
      setProblem(error.message);
      return;
    }
    const stopper = new AbortController();
    setAbort(stopper);
    await generate('v1/completions', body, stopper.signal, setAnswer);
    setAbort(null);
  }

  return html`<div class="chat">
    <div class="middle">
      <form class="completion" onSubmit=${complete}>
        <label>Prompt<textarea rows="8" value=${prompt} onInput=${(event) => setPrompt(event.currentTarget.value)} /></label>
        <div class="bar">${abort
          ? html`<button type="button" onClick=${() => abort.abort()}>Stop</button>`
          : html`<button disabled=${!prompt}>Complete</button>`}
          ${answer && !abort && html`<button type="button" class="quiet" onClick=${() => setPrompt(prompt + answer.content)}>Add to the prompt</button>`}
        </div>
      </form>
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}
      ${answer && html`<article class="turn assistant" aria-label="Completion" aria-busy=${abort !== null}>
        <${Plain} text=${answer.content} moves=${answer.moves.filter(({ inside }) => inside === 'content')} />
        ${answer.error && html`<p class="problem" role="alert">${answer.error}</p>`}
        <${Figures} answer=${answer} />
      </article>`}
    </div>
    <aside class="side right" aria-label="Settings"><${Sampling} settings=${settings} change=${setSettings} /></aside>
  </div>`;
}
