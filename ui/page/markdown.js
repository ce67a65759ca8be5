// Markdown as elements, never as HTML text: what a model writes cannot become an element that is not made here. Elements are
// compared with those of before, so a selection survives the next token.
import { Lexer } from './vendor/marked.js';
import { MARK } from './answer.js';
import { html } from './html.js';

/// Longest text that is rendered; longer answers are shown as plain text.
const MAX_TEXT = 200_000;

export function Markdown({ text, moves }) {
  if (text.length > MAX_TEXT) return html`<div class="prose"><pre>${marked(text, counter(moves))}</pre></div>`;
  const next = counter(moves);
  return html`<div class="prose">${new Lexer({ gfm: true }).lex(text).map((token) => block(token, next))}</div>`;
}

/// Text with a mark wherever the stream moved.
export function Plain({ text, moves }) {
  return html`<div class="prose plain">${marked(text, counter(moves))}</div>`;
}

const counter = (moves) => {
  let at = 0;
  return () => moves[at++];
};

function marked(text, next) {
  const parts = unescaped(text).split(MARK);
  return parts.flatMap((part, at) => (at === 0 ? [part] : [html`<${Move} move=${next()} />`, part]));
}

function Move({ move }) {
  const title = move?.worker ? `This stream moved here to ${move.worker}` : 'This stream moved here to another worker';
  return html`<mark class="move" role="img" tabindex="0" aria-label=${title} title=${title}>⇄</mark>`;
}

// The lexer leaves entities alone; only these five are written by people.
const ENTITIES = { '&amp;': '&', '&lt;': '<', '&gt;': '>', '&quot;': '"', '&#39;': "'" };
const unescaped = (text) => text.replace(/&(amp|lt|gt|quot|#39);/g, (entity) => ENTITIES[entity]);

function block(token, next) {
  const inside = () => inline(token.tokens ?? [], next);
  switch (token.type) {
    case 'heading':
      return html`<${`h${Math.min(6, token.depth + 2)}`}>${inside()}<//>`;
    case 'paragraph':
      return html`<p>${inside()}</p>`;
    case 'text':
      return token.tokens ? inside() : marked(token.text, next);
    case 'code':
      return html`<${Code} language=${token.lang ?? ''}>${raw(token.text, next)}<//>`;
    case 'blockquote':
      return html`<blockquote>${token.tokens.map((one) => block(one, next))}</blockquote>`;
    case 'list': {
      const items = token.items.map((item) => html`<li>
        ${item.task && html`<input type="checkbox" disabled checked=${item.checked} aria-label="done" /> `}
        ${item.tokens.map((one) => block(one, next))}
      </li>`);
      return token.ordered ? html`<ol start=${token.start || 1}>${items}</ol>` : html`<ul>${items}</ul>`;
    }
    case 'table':
      return html`<div class="table" tabindex="0" role="region" aria-label="table"><table>
        <thead><tr>${token.header.map((cell) => html`<th>${inline(cell.tokens, next)}</th>`)}</tr></thead>
        <tbody>${token.rows.map((row) => html`<tr>${row.map((cell) => html`<td>${inline(cell.tokens, next)}</td>`)}</tr>`)}</tbody>
      </table></div>`;
    case 'hr':
      return html`<hr />`;
    case 'space':
    case 'def':
      return null;
    default:
      return html`<p>${raw(token.raw ?? '', next)}</p>`;
  }
}

function inline(tokens, next) {
  return tokens.map((token) => {
    const inside = () => inline(token.tokens ?? [], next);
    switch (token.type) {
      case 'strong': return html`<strong>${inside()}</strong>`;
      case 'em': return html`<em>${inside()}</em>`;
      case 'del': return html`<del>${inside()}</del>`;
      case 'codespan': return html`<code>${raw(token.text, next)}</code>`;
      case 'br': return html`<br />`;
      case 'link': return link(token, inside());
      // A picture would be fetched from wherever the model says.
      case 'image': return link(token, [`[picture: ${token.text || token.href}]`]);
      case 'escape': return marked(token.text, next);
      case 'text': return token.tokens ? inside() : marked(token.text, next);
      default: return raw(token.raw ?? '', next);
    }
  });
}

const raw = (text, next) => {
  const parts = text.split(MARK);
  return parts.flatMap((part, at) => (at === 0 ? [part] : [html`<${Move} move=${next()} />`, part]));
};

function link({ href }, inside) {
  const safe = /^(https?:|mailto:)/i.test(href) ? href.replaceAll(MARK, '') : null;
  return safe ? html`<a href=${safe} target="_blank" rel="noreferrer noopener">${inside}</a>` : html`<span>${inside}</span>`;
}

function Code({ language, children }) {
  const copy = (event) => {
    const code = event.currentTarget.closest('figure').querySelector('code').textContent;
    navigator.clipboard?.writeText(code.replaceAll('⇄', ''));
  };
  return html`<figure class="code">
    <figcaption><span>${language}</span><button type="button" class="quiet" onClick=${copy}>Copy</button></figcaption>
    <pre tabindex="0"><code>${children}</code></pre>
  </figure>`;
}
