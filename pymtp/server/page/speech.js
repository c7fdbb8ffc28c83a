// Has an answer read aloud, by those who use a screen reader: by whole sentences, not by tokens.

import { make } from "./elements.js";

const SENTENCES = /^[^]*(?:[.!?:](?=\s)|[。！？\n])/;

/** Puts the sentences of one answer into a live region. */
export class SentenceReader {
  #region;
  #nRead = 0; // UTF-16 units

  constructor(region) {
    this.#region = region;
    region.replaceChildren();
  }

  /** Read what is new in `text`; what is not a whole sentence, if the text `isComplete`. */
  read(text, isComplete = false) {
    const rest = text.slice(this.#nRead);
    const found = isComplete ? rest : (SENTENCES.exec(rest)?.[0] ?? "");
    this.#nRead += found.length;
    const spoken = found.replace(/[*_`#|]+/g, "").trim();
    if (spoken) this.#region.append(make("p", [spoken]));
  }
}
