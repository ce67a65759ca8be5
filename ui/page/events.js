// Server-sent events of an answer to POST or GET, which EventSource cannot read: it sends neither bodies nor
// keys.

/// Most characters of one event.
const MAX_EVENT = 8_000_000;

/// Yields `{event, id, data}` for each event of `response`. The end of the body ends it, whatever the last
/// event was.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value;
      for (let end; (end = /\r?\n\r?\n/.exec(text)); ) {
        const block = text.slice(0, end.index);
        text = text.slice(end.index + end[0].length);
        const event = parsed(block);
        if (event) yield event;
      }
      if (text.length > MAX_EVENT) throw new Error('The server sent an event that is too long.');
    }
  } finally {
    // A reader that leaves early ends the request.
    reader.cancel().catch(() => {});
  }
}

function parsed(block) {
  const event = { event: 'message', id: null, data: null };
  for (const line of block.split(/\r?\n/)) {
    const colon = line.indexOf(':');
    if (colon <= 0) continue;
    const [name, value] = [line.slice(0, colon), line.slice(colon + 1).replace(/^ /, '')];
    if (name === 'data') event.data = event.data === null ? value : `${event.data}\n${value}`;
    else if (name === 'event' || name === 'id') event[name] = value;
  }
  return event.data === null ? null : event;
}
