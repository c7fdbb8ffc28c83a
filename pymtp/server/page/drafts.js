// Which characters of an answer were accepted drafts. Knows texts and their flags: "1" or "0" for each UTF-16 unit.

import { make } from "./elements.js";

/** Puts an answer together: the texts of its thinking and content, and their flags. */
export class Parts {
  #message;
  #raw = "";
  #flags = "";
  #waiting = [];

  constructor(message) {
    this.#message = message;
  }

  /** Add to "reasoning" or "content". */
  add(part, text) {
    if (!text) return;
    const plain = text.replaceAll("\r", "");
    this.#message[part] += plain;
    this.#waiting.push([part, plain]);
  }

  /** Say which pieces of the model's own text were drafted. That has tags and spaces which the parts leave out. */
  flag(pieces) {
    for (const [piece, isDrafted] of pieces) {
      this.#raw += piece;
      this.#flags += (isDrafted ? "1" : "0").repeat(piece.length);
    }
    for (let text; this.#waiting.length; this.#waiting.shift()) {
      text = this.#waiting[0][1];
      let [flags, at] = ["", 0];
      for (const unit of text.split("")) {
        at = this.#raw.indexOf(unit, at) + 1;
        if (at === 0) return; // the rest of it comes
        flags += this.#flags[at - 1];
      }
      this.#message.drafted[this.#waiting[0][0]] += flags;
      this.#raw = this.#raw.slice(at);
      this.#flags = this.#flags.slice(at);
    }
  }
}

/** Wrap what was drafted in spans. The text of `element` is `source` without the signs of Markdown. */
export function colour(element, source, flags) {
  if (!flags.includes("1")) return;
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (walker.nextNode()) nodes.push(walker.currentNode);
  let at = 0;
  for (const node of nodes) {
    let shown = "";
    for (const unit of node.data.split("")) {
      const found = source.indexOf(unit, at);
      shown += (found >= 0 && flags[found]) || "0";
      if (found >= 0) at = found + 1;
    }
    wrap(node, shown);
  }
}

/** A space counts only between drafted words, so that neither indentation nor the end of a line is coloured. */
function wrap(node, flags) {
  const text = node.data;
  const isWord = (i) => flags[i] === "1" && text[i].trim();
  const isDrafted = (i) => Boolean(isWord(i) || (flags[i] === "1" && isWord(i - 1) && isWord(i + 1)));
  const runs = [];
  for (let i = 0; i < text.length; i++) {
    const [last, drafted] = [runs.at(-1), isDrafted(i)];
    if (last?.drafted === drafted) last.text += text[i];
    else runs.push({ drafted, text: text[i] });
  }
  const shown = ({ drafted, text }) => (drafted ? make("span", [text], { className: "drafted" }) : text);
  node.replaceWith(...runs.map(shown));
}
