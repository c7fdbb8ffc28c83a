// Markdown as elements. marked reads it; nothing is ever read as HTML, and nothing is loaded.

import { lexer } from "./marked.esm.js";
import { colour } from "./drafts.js";
import { copy } from "./clipboard.js";
import { make } from "./elements.js";

/** Shows a text that grows. Its last two blocks may change ("3" becomes "3." of a list) and are read again. */
export class MarkdownView {
  #element;
  #nBlocks = 0; // that are finished
  #nRead = 0; // UTF-16 units of them

  constructor(element) {
    this.#element = element;
  }

  /** Show `text`, which begins with what was shown; all of it is read if it `isWhole`. `flags`: see drafts.js. */
  show(text, flags, isWhole) {
    if (isWhole) this.#nBlocks = this.#nRead = 0; // links may be defined at its end
    while (this.#element.children.length > this.#nBlocks) this.#element.lastChild.remove();
    const tokens = read(text.slice(this.#nRead));
    const isBlock = (token) => token.type !== "space";
    const last = tokens.findLastIndex(isBlock);
    const open = tokens.slice(0, Math.max(0, last)).findLastIndex(isBlock);
    let at = this.#nRead;
    tokens.forEach((token, i) => {
      if (i === open) [this.#nBlocks, this.#nRead] = [this.#element.children.length, at];
      const end = at + token.raw.length;
      const block = make("div", nodes(token));
      colour(block, token.raw, flags.slice(at, end));
      for (const code of block.querySelectorAll("pre")) addHead(code);
      if (block.hasChildNodes()) this.#element.append(block);
      at = end;
    });
  }
}

function read(text) {
  try {
    return lexer(text, { gfm: true, breaks: true });
  } catch {
    return [{ type: "text", raw: text, text }]; // thousands of quotes in quotes, say
  }
}

const TAGS = { paragraph: "p", blockquote: "blockquote", list_item: "li", strong: "strong", em: "em", del: "del" };
const DEPTH_MAX = 50;
const LINK = /^(https?:|mailto:)/i;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', nbsp: "\u00a0", "#39": "'" };

const unescaped = (text) => text.replace(/&(amp|lt|gt|quot|nbsp|#39);/g, (_, name) => ENTITIES[name]);

let depth = 0;

/** The nodes of what is in a token; its source, if that is deeper than anyone writes or a browser can draw. */
function inside(token) {
  if (depth > DEPTH_MAX) return [token.raw];
  depth += 1;
  const found = (token.tokens ?? []).flatMap(nodes);
  depth -= 1;
  return found;
}

/** The nodes of a token of marked. */
function nodes(token) {
  if (token.type in TAGS) return [make(TAGS[token.type], inside(token))];
  switch (token.type) {
    case "space":
    case "def":
      return [];
    case "heading":
      return [make(`h${Math.min(token.depth + 2, 6)}`, inside(token))];
    case "list":
      return [make(token.ordered ? "ol" : "ul", token.items.flatMap(nodes), token.ordered && { start: token.start })];
    case "checkbox":
      return [make("input", [], { type: "checkbox", checked: token.checked, disabled: true })];
    case "code":
      return [make("pre", [make("code", [token.text])], { tabIndex: 0, title: token.lang ?? "" })];
    case "codespan":
      return [make("code", [token.text])];
    case "link":
    case "image":
      return link(token);
    case "table":
      return [make("div", [table(token)], { className: "table", tabIndex: 0 })];
    case "br":
    case "hr":
      return [make(token.type)];
    case "html":
      return /^<br\s*\/?>$/i.test(token.raw.trim()) ? [make("br")] : [token.raw];
    default:
      return token.tokens ? inside(token) : [unescaped(token.text ?? token.raw)];
  }
}

/** A link, or its text alone if it leads to a script or a file. A picture from elsewhere is a link to it. */
function link(token) {
  const children = token.tokens?.length ? inside(token) : [token.text || token.href];
  if (!LINK.test(token.href)) return children;
  return [make("a", children, { href: token.href, target: "_blank", rel: "noopener noreferrer" })];
}

function table({ header, rows }) {
  const cell = (tag) => (each) => make(tag, inside(each), { className: each.align ?? "" });
  const row = (tag) => (cells) => make("tr", cells.map(cell(tag)));
  return make("table", [make("thead", [row("th")(header)]), make("tbody", rows.map(row("td")))]);
}

/** The language of a code block, and a button that copies it. */
function addHead(pre) {
  const button = make("button", ["Copy"], { type: "button", onclick: () => copy(pre.textContent, button) });
  pre.before(make("div", [make("span", [pre.title]), button], { className: "code-head" }));
  pre.removeAttribute("title");
}
