// An answer as it arrives: text, reasoning, calls of tools, moves between workers, times. Pure but for the
// clock that is passed in.

/// Most moves that are marked, and most calls of tools: a server that says more is not believed.
const MAX_MARKS = 1000;
const MAX_CALLS = 128;

const ODD = 'The server sent a chunk that this page does not understand.';

/// `moves` are the places where the stream moved, `{worker, inside, at}`: `at` characters of the content or
/// of the reasoning, or `at` calls, come before it. `inside` is null until there is any.
/// `moved` is how often the server says that it moved; some moves have no place.
export function started(now) {
  return {
    content: '', reasoning: '', calls: [], moves: [], moved: 0, finish: null, usage: null, error: null,
    sent: now, first: null, last: null, chunks: 0,
  };
}

/// Least time from the first token to the last that gives a rate: short answers arrive in one piece.
const LEAST_SECONDS = 0.02;

const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);
const isText = (value) => value === undefined || value === null || typeof value === 'string';

/// `answer` with one chunk of a chat or completion stream added, in place.
export function add(answer, chunk, now) {
  if (!isObject(chunk)) {
    answer.error ??= ODD;
    return;
  }
  if (chunk.error) {
    answer.error = String(chunk.error.message ?? chunk.error);
    return;
  }
  if (isObject(chunk.usage)) answer.usage = usageOf(chunk.usage);
  const choices = Array.isArray(chunk.choices) ? chunk.choices.filter(isObject) : [];
  if (isObject(chunk.skein)) moved(answer, chunk.skein, choices.length === 0);
  // Others are of requests for several answers, which this page does not send.
  const choice = choices.find(({ index = 0 }) => index === 0);
  if (choice) append(answer, choice, now);
}

function append(answer, choice, now) {
  const delta = isObject(choice.delta) ? choice.delta : { content: choice.text };
  const reasoning = delta.reasoning_content ?? delta.reasoning;
  const calls = delta.tool_calls ?? [];
  if (!isText(reasoning) || !isText(delta.content) || !Array.isArray(calls) || !calls.every(isObject)) {
    answer.error ??= ODD;
    return;
  }
  if (reasoning) {
    place(answer, 'reasoning', answer.reasoning.length);
    answer.reasoning += reasoning;
  }
  if (delta.content) {
    place(answer, 'content', answer.content.length);
    answer.content += delta.content;
  }
  for (const part of calls) call(answer, part);
  if (reasoning || delta.content || calls.length) {
    answer.first ??= now;
    answer.last = now;
    answer.chunks += 1;
  }
  if (typeof choice.finish_reason === 'string') answer.finish = choice.finish_reason;
}

/// A chunk of its own tells where the stream moved; the last one only how often.
function moved(answer, { worker, moves }, isPlace) {
  if (!Number.isSafeInteger(moves) || moves <= answer.moved) return;
  answer.moved = moves;
  if (!isPlace || answer.moves.length >= MAX_MARKS) return;
  const inside = answer.calls.length ? 'calls' : answer.content ? 'content' : answer.reasoning ? 'reasoning' : null;
  const at = inside ? answer[inside].length : 0;
  answer.moves.push({ worker: typeof worker === 'string' ? worker : null, inside, at, isPlaced: false });
}

/// The text after a move is the new worker's, so the moves since the last text stand where the next one
/// begins.
function place(answer, inside, at) {
  for (let last = answer.moves.length - 1; last >= 0 && !answer.moves[last].isPlaced; last--) {
    answer.moves[last] = { ...answer.moves[last], inside, at, isPlaced: true };
  }
}

function call(answer, { index, id, function: part }) {
  const number = Number.isSafeInteger(index) ? index : answer.calls.length;
  let one = answer.calls.find((known) => known.index === number);
  if (!one && answer.calls.length >= MAX_CALLS) {
    answer.error ??= ODD;
    return;
  }
  place(answer, 'calls', one ? answer.calls.indexOf(one) + 1 : answer.calls.length);
  if (!one) answer.calls.push((one = { index: number, id: '', name: '', arguments: '' }));
  if (typeof id === 'string' && id) one.id = id;
  if (typeof part?.name === 'string') one.name += part.name;
  if (typeof part?.arguments === 'string') one.arguments += part.arguments;
}

/// Milliseconds to the first token, and tokens a second after it.
export function speed(answer) {
  const ttft = answer.first === null ? null : answer.first - answer.sent;
  const tokens = answer.usage?.completion_tokens ?? answer.chunks;
  const seconds = ((answer.last ?? 0) - (answer.first ?? 0)) / 1000;
  return { ttft, tokens, rate: tokens > 1 && seconds >= LEAST_SECONDS ? (tokens - 1) / seconds : null };
}

/// What goes back to the server as this answer's message.
export function message(answer) {
  const calls = answer.calls.map(({ id, name, arguments: given }) => ({
    id, type: 'function', function: { name, arguments: given },
  }));
  return {
    role: 'assistant',
    content: answer.content || (calls.length ? null : ''),
    ...(answer.reasoning ? { reasoning_content: answer.reasoning } : {}),
    ...(calls.length ? { tool_calls: calls } : {}),
  };
}

const text = (value) => (typeof value === 'string' ? value : '');
const number = (value, otherwise) => (Number.isFinite(value) && value >= 0 ? value : otherwise);

function usageOf({ prompt_tokens: prompt, completion_tokens: tokens, prompt_tokens_details: details }) {
  return {
    prompt_tokens: number(prompt, 0),
    completion_tokens: number(tokens, 0),
    prompt_tokens_details: { cached_tokens: number(details?.cached_tokens, 0) },
  };
}

/// The answer that the browser kept as `value`, whatever it is: what has the wrong shape is left out.
export function restored(value) {
  if (!isObject(value)) return null;
  const [content, reasoning] = [text(value.content), text(value.reasoning)];
  const calls = list(value.calls).slice(0, MAX_CALLS).map((one, at) => ({
    index: number(one.index, at), id: text(one.id), name: text(one.name), arguments: text(one.arguments),
  }));
  const length = { content: content.length, reasoning: reasoning.length, calls: calls.length };
  const moves = list(value.moves).slice(0, MAX_MARKS)
    .filter(({ inside, at }) => inside === null || (Object.hasOwn(length, inside) && at >= 0 && at <= length[inside]))
    .map(({ worker, inside, at }) => ({ worker: text(worker) || null, inside, at: number(at, 0), isPlaced: true }));
  const [finish, error] = [text(value.finish) || null, text(value.error) || null];
  return {
    content, reasoning, calls, moves, moved: number(value.moved, moves.length), finish,
    usage: isObject(value.usage) ? usageOf(value.usage) : null,
    error: error ?? (finish ? null : 'The page kept this answer before its end.'),
    sent: number(value.sent, 0), first: number(value.first, null), last: number(value.last, null), chunks: number(value.chunks, 0),
  };
}

const list = (value) => (Array.isArray(value) ? value.filter(isObject) : []);
