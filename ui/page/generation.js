// One generation: sends the request, and draws the answer while it arrives.
import { add, started } from './answer.js';
import { stream } from './server.js';

/// How often an answer that arrives is drawn, ms: a frame a token would cost more than the token.
const DRAW_EVERY = 50;

/// Sends `body` to `path` and calls `draw` with the answer so far, at last with the whole one. What goes wrong is in it.
export async function generate(path, body, signal, draw) {
  const one = started(performance.now());
  const shown = () => draw({ ...one, moves: [...one.moves] });
  shown();
  let drawn = 0;
  try {
    const whole = { ...body, stream: true, stream_options: { include_usage: true } };
    for await (const { data } of stream(path, { body: whole, signal, headers: { 'x-skein-moves': 'true' } })) {
      if (data === null) break;
      const now = performance.now();
      add(one, data, now);
      if (now - drawn > DRAW_EVERY) {
        drawn = now;
        shown();
      }
    }
    if (!one.finish && !one.error) one.error = 'The connection broke before the end of the answer.';
  } catch (error) {
    if (error.name === 'AbortError') one.finish = 'stopped';
    else one.error = error.message;
  }
  shown();
}
