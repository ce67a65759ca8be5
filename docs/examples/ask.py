from openai import OpenAI  # pip install openai

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="unused")
stream = client.chat.completions.create(
    model="skein-7m",
    messages=[{"role": "user", "content": "Write a function that adds two numbers"}],
    temperature=0, stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
