// One message as elements: thinking, text, how it ended, and what can be done with it.

import { copy } from "./clipboard.js";
import { make } from "./elements.js";
import { MarkdownView } from "./markdown.js";

const template = document.getElementById("message");
const ENDS = { length: "cut", stopped: "stopped", failed: "failed" };

/** A message of a chat. `onEdit` and `onAgain` are called when their buttons are pressed. */
export class MessageView {
  #message;
  #thoughts;
  #text;

  constructor(message, onEdit, onAgain) {
    this.#message = message;
    this.element = template.content.firstElementChild.cloneNode(true);
    this.element.classList.add(message.role);
    const [thoughts, text] = this.element.querySelectorAll(".text");
    const [copying, edit, again] = this.element.querySelectorAll("footer button");
    copying.onclick = () => copy(message.content, copying);
    edit.onclick = onEdit;
    again.onclick = onAgain;
    edit.hidden = message.role !== "user";
    again.hidden = message.role === "user";
    if (message.role === "user") {
      thoughts.parentElement.remove();
      text.append(...message.images.map((src) => make("img", [], { src, alt: "Image" })), message.content);
      return;
    }
    this.#thoughts = new MarkdownView(thoughts);
    this.#text = new MarkdownView(text);
    this.#find("details").ontoggle = () => this.#showThoughts(false);
  }

  /** Show what an answer is now. `isRunning`: more of it comes. */
  show(isRunning) {
    const { role, content, drafted, end, reason, note } = this.#message;
    if (role === "user") return;
    this.#find("summary").textContent = isRunning && !content ? "Thinking ..." : "Thoughts";
    this.#showThoughts(!isRunning);
    this.#text.show(content, drafted.content, !isRunning);
    const last = this.#find(".end");
    last.hidden = isRunning || end === "stop";
    last.textContent = `[${ENDS[end] ?? "interrupted"}${reason ? `: ${reason}` : ""}]`;
    last.classList.toggle("error", end === "failed");
    this.#find("small").textContent = note ?? "";
    this.#find("[name=again]").textContent = end === "failed" ? "Try again" : "Regenerate";
    this.element.setAttribute("aria-busy", isRunning);
  }

  #showThoughts(isWhole) {
    const { reasoning, drafted } = this.#message;
    const details = this.#find("details");
    details.hidden = !reasoning;
    if (details.open) this.#thoughts.show(reasoning, drafted.reasoning, isWhole);
  }

  #find(selector) {
    return this.element.querySelector(selector);
  }
}
