// An answer as it arrives: text, reasoning, calls of tools, moves between workers, times. Pure but for the clock that is passed in.

/// Stands in text where the stream moved; the renderer puts the mark there. Private use area, so no model writes it by itself:
/// one that does is replaced.
export const MARK = '\uE100';

export function started(now) {
  return {
    content: '', reasoning: '', calls: [], moves: [], finish: null, usage: null, error: null,
    sent: now, first: null, last: null, chunks: 0,
  };
}

/// Least time from the first token to the last that gives a rate: short answers arrive in one piece.
const LEAST_SECONDS = 0.02;

const plain = (text) => text.replaceAll(MARK, '\uFFFD');

/// `answer` with one chunk of a chat or completion stream added, in place.
export function add(answer, chunk, now) {
  if (chunk.error) {
    answer.error = chunk.error.message ?? String(chunk.error);
    return;
  }
  if (chunk.usage) answer.usage = chunk.usage;
  const choice = chunk.choices?.[0];
  if (chunk.skein?.moves > answer.moves.length) moved(answer, chunk.skein);
  if (!choice) return;
  const delta = choice.delta ?? { content: choice.text };
  const reasoning = delta.reasoning_content ?? delta.reasoning ?? '';
  const content = delta.content ?? '';
  if (reasoning) answer.reasoning += plain(reasoning);
  if (content) answer.content += plain(content);
  for (const part of delta.tool_calls ?? []) call(answer, part);
  if (reasoning || content || delta.tool_calls?.length) {
    answer.first ??= now;
    answer.last = now;
    answer.chunks += 1;
  }
  if (choice.finish_reason) answer.finish = choice.finish_reason;
}

/// One mark a move. A move that no chunk named at its place is known from the finish chunk only, and marked there.
function moved(answer, { worker = null, moves }) {
  const inside = answer.content ? 'content' : 'reasoning';
  while (answer.moves.length < moves) {
    answer.moves.push({ worker, inside });
    answer[inside] += MARK;
  }
}

function call(answer, { index = answer.calls.length, id, function: part = {} }) {
  const one = (answer.calls[index] ??= { id: '', name: '', arguments: '' });
  if (id) one.id = id;
  if (part.name) one.name += part.name;
  if (part.arguments) one.arguments += part.arguments;
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
  const text = answer.content.replaceAll(MARK, '');
  const calls = answer.calls.map(({ id, name, arguments: given }) => ({
    id, type: 'function', function: { name, arguments: given },
  }));
  return {
    role: 'assistant',
    content: text || (calls.length ? null : ''),
    ...(answer.reasoning ? { reasoning_content: answer.reasoning.replaceAll(MARK, '') } : {}),
    ...(calls.length ? { tool_calls: calls } : {}),
  };
}
