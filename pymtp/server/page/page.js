// The page's chat: sends messages, shows answers as they come, accepted drafts in colour. Text is never read as HTML.

const find = (id) => document.getElementById(id);
const [log, text, stats] = [find("log"), find("text"), find("stats")];
let messages = [];
let running = null;

function settings() {
  const given = Object.fromEntries(new FormData(find("settings")));
  const numbers = ["temperature", "top_p", "top_k", "max_tokens", "seed", "draft_p_min"];
  const body = { accept: given.accept };
  for (const name of numbers) if (given[name] !== "") body[name] = Number(given[name]);
  if (given.draft_max !== "") body.draft_max = given.draft_max === "auto" ? "auto" : Number(given.draft_max);
  return { body, system: given.system, key: given.key };
}

function headers(key) {
  return key ? { "Content-Type": "application/json", Authorization: `Bearer ${key}` } : { "Content-Type": "application/json" };
}

function add(kind, content = "") {
  const element = document.createElement("p");
  element.className = kind;
  element.textContent = content;
  log.append(element);
  log.scrollTop = log.scrollHeight;
  return element;
}

function show(element, parts) {
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  for (const [piece, isDrafted] of parts) {
    const span = document.createElement("span");
    span.textContent = piece;
    if (isDrafted) span.className = "drafted";
    element.append(span);
  }
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

function report(timings) {
  const rate = timings.draft_n ? `${Math.round((100 * timings.draft_n_accepted) / timings.draft_n)} % of drafts accepted` : "no drafts";
  stats.textContent = `${timings.predicted_n} tokens, ${timings.predicted_per_second.toFixed(0)} a second, ${rate}`;
}

async function* events(response) {
  let rest = "";
  for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + chunk).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: {")) yield JSON.parse(line.slice(6));
  }
}

async function answer() {
  const { body, system, key } = settings();
  const chat = messages; // the page may begin another one meanwhile
  const prompt = system ? [{ role: "system", content: system }, ...chat] : chat;
  const element = add("assistant");
  let [said, hasFailed] = ["", false];
  running = new AbortController();
  find("stop").disabled = false;
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: headers(key),
      signal: running.signal,
      body: JSON.stringify({ ...body, messages: prompt, stream: true, timings_per_token: true, return_drafts: true }),
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      if (event.drafts) {
        show(element, event.drafts);
        said += event.drafts.map(([piece]) => piece).join("");
      }
      if (event.timings) report(event.timings);
    }
  } catch (error) {
    hasFailed = error.name !== "AbortError";
    if (hasFailed) add("error", error.message);
  }
  // a message that cannot be answered would be in the way of all later ones
  if (said || !hasFailed) chat.push({ role: "assistant", content: said });
  else chat.pop();
  running = null;
  find("stop").disabled = true;
  text.focus();
}

find("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const content = text.value.trim();
  if (!content || running) return;
  text.value = "";
  add("user", content);
  messages.push({ role: "user", content });
  answer();
});
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    find("ask").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
find("stop").addEventListener("click", () => running?.abort());
find("clear").addEventListener("click", () => {
  running?.abort();
  messages = [];
  log.replaceChildren();
  stats.textContent = "";
  text.focus();
});

async function poll() {
  try {
    const { key } = settings();
    const response = await fetch("slots", { headers: headers(key) });
    if (response.ok) {
      const slots = await response.json();
      find("slots").replaceChildren(
        ...slots.map((slot) => {
          const box = document.createElement("i");
          box.className = slot.is_processing ? "busy" : "";
          box.title = `slot ${slot.id}: ${slot.is_processing ? "in use" : "free"}`;
          return box;
        }),
      );
    }
    const props = await fetch("props", { headers: headers(key) });
    find("model").textContent = props.ok ? (await props.json()).model_alias : "a key is needed: see the settings";
  } catch {
    find("model").textContent = "the server does not answer";
  }
  setTimeout(poll, document.hidden ? 10000 : 1500);
}

poll();
text.focus();
