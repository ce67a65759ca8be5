// One generation: sends the request, and draws the answer while it arrives.
import { add, started } from './answer.js';
import { models, stream } from './server.js';

/// How often an answer that arrives is drawn, ms: a frame a token would cost more than the token.
const DRAW_EVERY = 50;
/// A long answer takes long to draw: the pause after a drawing is this many times as long.
const DRAWING_SHARE = 4;

/// The model to ask: the chosen one, or the server's first if the list has not come yet.
async function modelOf(chosen) {
  const model = chosen ?? (await models())[0] ?? '';
  if (!model) throw new Error('There is no model for this key. Ask who runs the server for one, or use another key.');
  return model;
}

/// Sends `body` to `path` and calls `draw` with the answer so far, at last with the whole one. What goes
/// wrong is in it.
export async function generate(path, body, signal, draw) {
  const one = started(performance.now());
  const shown = () => draw({ ...one, moves: [...one.moves], calls: one.calls.map((call) => ({ ...call })) });
  shown();
  let next = 0;
  try {
    const whole = { ...body, model: await modelOf(body.model), stream: true, stream_options: { include_usage: true } };
    for await (const { data } of stream(path, { body: whole, signal, headers: { 'x-skein-moves': 'true' } })) {
      if (data === null) break;
      const now = performance.now();
      add(one, data, now);
      if (now < next) continue;
      shown();
      await drawn();
      const end = performance.now();
      next = end + Math.max(DRAW_EVERY, DRAWING_SHARE * (end - now));
    }
    if (!one.finish && !one.error) one.error = 'The connection broke before the end of the answer.';
  } catch (error) {
    if (error.name === 'AbortError') one.finish = 'stopped';
    else one.error = error.message;
  }
  shown();
}

/// Resolves after what was asked for is drawn. Unlike a timer's, its turn also comes soon while the tab is
/// hidden.
function drawn() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}
