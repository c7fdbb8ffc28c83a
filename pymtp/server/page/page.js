// The chat: what is said in which order, and what buttons and keys do. Text is never read as HTML.

import * as chatList from "./chat-list.js";
import * as chats from "./chats.js";
import { limit, report } from "./costs.js";
import { Parts } from "./drafts.js";
import * as images from "./images.js";
import { MessageView } from "./message.js";
import * as server from "./server.js";
import * as settings from "./settings.js";
import { SentenceReader } from "./speech.js";
import { answer, conversation } from "./stream.js";

const [log, text, note] = ["log", "text", "note"].map((id) => document.getElementById(id));
const [sendButton, stopButton] = ["send", "stop"].map((id) => document.getElementById(id));
const DRAW_MS = 50;
const SAVE_MS = 1000;

let chat = chats.make();
let views = new Map(); // of the messages that are shown
let editing = null; // the message that the next one replaces
let running = null; // {chat, message, controller}

const say = (sentence) => (note.textContent = sentence);

// --- what is shown

function open(next) {
  stopEditing();
  chat = next;
  views = new Map();
  log.replaceChildren();
  chat.messages.forEach(add);
  showName();
}

function showName() {
  history.replaceState(null, "", chat.messages.length ? `#${chat.id}` : location.pathname + location.search);
  document.title = chat.title ? `${chat.title} - pymtp` : "pymtp";
}

function add(message) {
  const view = new MessageView(message, () => edit(message), () => again(message));
  views.set(message, view);
  log.append(view.element);
  view.show(running?.message === message);
  log.scrollTop = log.scrollHeight;
}

function show(message) {
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  views.get(message)?.show(running?.message === message);
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

function showButtons() {
  sendButton.disabled = running !== null;
  stopButton.disabled = running === null && editing === null;
  stopButton.textContent = editing ? "Cancel" : "Stop";
}

async function save(saved) {
  if (!saved.messages.length) return; // deleted while it was answered
  saved.changed = Date.now();
  await chats.put(saved).catch((error) => say(`This browser does not keep the chat: ${error.message}`));
}

// --- what is said

function send() {
  const [content, shown] = [text.value.trim(), images.current()];
  if (running || !(content || shown.length)) return;
  if (editing) cut(editing);
  editing = null;
  text.value = "";
  images.set([]);
  chat.title ||= content.slice(0, 60) || "Image";
  chat.messages.push({ role: "user", content, images: shown });
  add(chat.messages.at(-1));
  respond();
}

async function respond() {
  const [asked, message] = [chat, chats.makeAnswer()]; // another chat may be opened meanwhile
  const { body, system, key } = settings.current();
  const messages = conversation(asked.messages, system);
  running = { chat: asked, message, controller: new AbortController() };
  asked.messages.push(message);
  add(message);
  say("");
  showName();
  showButtons();
  save(asked);
  try {
    await receive(answer({ ...body, messages }, key, running.controller.signal), body);
  } catch (error) {
    message.end = error.name === "AbortError" ? "stopped" : "failed";
    if (message.end === "failed") message.reason = error.message;
    askServer();
  }
  running = null;
  show(message);
  showButtons();
  save(asked);
}

async function receive(events, body) {
  const { chat: asked, message } = running;
  const [parts, reader] = [new Parts(message), new SentenceReader(document.getElementById("spoken"))];
  let [timer, pause, saved, end] = [0, DRAW_MS, Date.now(), null];
  const draw = () => {
    const began = performance.now();
    show(message);
    timer = 0;
    pause = Math.max(DRAW_MS, 2 * (performance.now() - began)); // a long text leaves time for keys
    reader.read(message.content);
    if (Date.now() - saved < SAVE_MS) return;
    saved = Date.now();
    save(asked);
  };
  try {
    for await (const { choices, drafts, timings } of events) {
      for (const { delta, finish_reason } of choices) {
        parts.add("reasoning", delta.reasoning_content);
        parts.add("content", delta.content);
        end = finish_reason ?? end;
      }
      if (drafts) parts.flag(drafts);
      if (timings) message.note = report(timings);
      if (end === "length") message.reason = limit(timings, body);
      timer ||= setTimeout(draw, pause);
    }
    message.end = end;
  } finally {
    clearTimeout(timer);
    reader.read(message.content, true);
  }
}

function cut(message) {
  for (const removed of chat.messages.splice(chat.messages.indexOf(message))) views.get(removed).element.remove();
}

function isBusy() {
  if (running) say("An answer is being written; Esc stops it.");
  return running !== null;
}

function again(message) {
  if (isBusy()) return;
  stopEditing();
  cut(message);
  respond();
}

function edit(message) {
  if (isBusy()) return;
  editing = message;
  text.value = message.content;
  images.set(message.images);
  say("Sending replaces this message and all that follows.");
  showButtons();
  text.focus();
}

function stopEditing() {
  if (!editing) return;
  editing = null;
  text.value = "";
  images.set([]);
  say("");
  showButtons();
}

function stop() {
  if (running) running.controller.abort();
  else stopEditing();
}

// --- buttons and keys

document.getElementById("ask").onsubmit = (event) => {
  event.preventDefault();
  send();
};
text.onkeydown = (event) => {
  // Enter ends a word of an input method, too; some browsers say so by 229 alone
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
  event.preventDefault();
  send();
};
document.onkeydown = (event) => {
  if (event.key !== "Escape" || event.isComposing || document.querySelector(":popover-open")) return;
  stop();
};
stopButton.onclick = stop;
document.getElementById("new").onclick = () => {
  open(chats.make());
  text.focus();
};

// --- the beginning

async function openStored() {
  const id = location.hash.slice(1);
  const stored = running?.chat.id === id ? running.chat : id && (await chats.find(id).catch(() => null));
  if (stored && (stored.id !== chat.id || stored.changed > chat.changed)) open(stored);
}

let askServer = () => {};
const onSettings = () => {
  document.body.classList.toggle("plain", !settings.hasColours());
  askServer();
};
settings.begin(onSettings);
onSettings();
chatList.begin({
  onOpen: (chosen) => open(running?.chat.id === chosen.id ? running.chat : chosen),
  onDelete: ({ id }) => {
    if (running?.chat.id === id) {
      running.chat.messages = [];
      running.controller.abort();
    }
    if (chat.id === id) open(chats.make());
  },
  say,
});
await openStored();
onhashchange = openStored;
document.addEventListener("visibilitychange", openStored); // another tab may have added to it
askServer = server.watch((props) => {
  settings.showDefaults(props);
  images.begin(props.modalities.vision, say);
}, settings.askForKey);
text.focus();
