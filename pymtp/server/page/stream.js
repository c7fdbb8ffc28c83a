// Asks the server for an answer and reads its events. Knows HTTP and the API; nothing of the page.

/** The headers of a request with an API key, or with none ("") */
export function headers(key) {
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

/** The events of an answer: chunks of a chat completion. Throws an Error that says what went wrong. */
export async function* answer(body, key, signal) {
  const asked = { ...body, stream: true, return_drafts: true };
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: headers(key),
    signal,
    body: JSON.stringify(asked),
  }).catch((error) => {
    throw error.name === "AbortError" ? error : new Error("the server does not answer");
  });
  if (!response.ok) throw new Error(await reason(response));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const lines = (rest + part.value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (!line.startsWith("data: ")) continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
  throw new Error("the answer broke off");
}

async function reason(response) {
  const said = await response.json().catch(() => null); // a proxy's page is not JSON
  return said?.error?.message ?? `the server answered with ${response.status} ${response.statusText}`;
}

/** The messages of a request: without thinking, and without questions whose answer failed. */
export function conversation(messages, system) {
  const isFailed = (message) => message?.end === "failed" && !message.content;
  const kept = messages.filter((message, i) => !isFailed(message) && !isFailed(messages[i + 1]));
  const sent = kept.map(({ role, content, images }) => ({
    role,
    content: images?.length ? [...images.map(imagePart), { type: "text", text: content }] : content,
  }));
  return system ? [{ role: "system", content: system }, ...sent] : sent;
}

const imagePart = (url) => ({ type: "image_url", image_url: { url } });
