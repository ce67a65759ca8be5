// Completion: one text that the model continues.
import { add, started } from './answer.js';
import { Figures } from './chat.js';
import { html, useEffect, useState } from './html.js';
import { Plain } from './markdown.js';
import { Sampling, fields } from './sampling.js';
import { stream } from './server.js';
import * as kept from './kept.js';

export function Completion({ model }) {
  const [prompt, setPrompt] = useState(() => kept.read('prompt', ''));
  const [settings, setSettings] = useState(() => kept.read('completion', { max_tokens: 128 }));
  const [answer, setAnswer] = useState(null);
  const [abort, setAbort] = useState(null);
  const [problem, setProblem] = useState('');
  useEffect(() => kept.write('completion', settings), [settings]);
  useEffect(() => kept.write('prompt', prompt), [prompt]);

  async function complete(event) {
    event.preventDefault();
    setProblem('');
    const stopper = new AbortController();
    const one = started(performance.now());
    try {
      const body = { ...fields(settings, false), model, prompt, stream: true, stream_options: { include_usage: true } };
      setAbort(stopper);
      for await (const { data } of stream('v1/completions', { body, signal: stopper.signal, headers: { 'x-skein-moves': 'true' } })) {
        if (data === null) break;
        add(one, data, performance.now());
        setAnswer({ ...one, moves: [...one.moves] });
      }
    } catch (error) {
      if (error.name !== 'AbortError') setProblem(error.message);
      else one.finish = 'stopped';
    }
    setAnswer({ ...one });
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
        <${Plain} text=${answer.content} moves=${answer.moves} />
        ${answer.error && html`<p class="problem" role="alert">${answer.error}</p>`}
        <${Figures} answer=${answer} />
      </article>`}
    </div>
    <aside class="side right" aria-label="Settings"><${Sampling} settings=${settings} change=${setSettings} /></aside>
  </div>`;
}
