"""What a user of the openai Python package sees of Bulkhead.

Run by scripts/clients/run, which sets BULKHEAD_URL, BULKHEAD_KEY, BULKHEAD_MODEL and
BULKHEAD_DECODE_PID. conformance.mjs is the same for npm. Exit status 0: all held.
"""

import os
import re
import signal
import sys

import openai

MODEL = os.environ["BULKHEAD_MODEL"]
client = openai.OpenAI(base_url=os.environ["BULKHEAD_URL"], api_key=os.environ["BULKHEAD_KEY"], max_retries=0, timeout=120)
question = [{"role": "user", "content": "What is the capital of France?"}]


def chat():
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=question, temperature=0, max_tokens=48)
    assert re.fullmatch("[0-9a-f]{64}", raw.headers["x-bulkhead-receipt"]), "no receipt"
    answer = raw.parse()
    choice, usage = answer.choices[0], answer.usage
    assert "Paris" in choice.message.content, choice.message.content
    assert choice.finish_reason == "stop", choice.finish_reason
    assert usage.prompt_tokens == 37 and usage.total_tokens == 37 + usage.completion_tokens, usage
    return answer


def stream_is_the_whole_answer():
    whole = chat()
    text, finish, usage = "", None, None
    for chunk in client.chat.completions.create(
        model=MODEL, messages=question, temperature=0, max_tokens=48, stream=True, stream_options={"include_usage": True}
    ):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
        usage = chunk.usage or usage
    assert text == whole.choices[0].message.content, text
    assert finish == whole.choices[0].finish_reason, finish
    assert usage == whole.usage, usage


def over_length_is_a_bad_request():
    for stream in (False, True):
        try:
            client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": " word" * 60000}], stream=stream)
        except openai.BadRequestError as e:
            assert e.code == "context_length_exceeded", e.code
            assert e.param == "messages", e.param
            assert re.search(r"maximum context length is \d+ tokens.* resulted in \d+ tokens", e.message), e.message
        else:
            raise AssertionError(f"no error (stream={stream})")


def wrong_key_is_an_authentication_error():
    other = openai.OpenAI(base_url=os.environ["BULKHEAD_URL"], api_key="sk-wrong", max_retries=0)
    try:
        other.chat.completions.create(model=MODEL, messages=question)
    except openai.AuthenticationError as e:
        assert e.code == "invalid_api_key", e.code
    else:
        raise AssertionError("no error")


def a_lost_decode_node_is_an_error():
    """Last, because nothing answers after it."""
    chunks, finish = 0, None
    try:
        for chunk in client.chat.completions.create(
            model=MODEL, messages=question, temperature=0, max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
        ):
            chunks += 1
            if chunks == 5:
                os.kill(int(os.environ["BULKHEAD_DECODE_PID"]), signal.SIGKILL)
            for choice in chunk.choices:
                finish = choice.finish_reason or finish
    except openai.APIError as e:
        assert e.code == "worker_lost", e.code
    else:
        raise AssertionError("the stream ended like a finished answer")
    assert chunks >= 5, chunks
    assert finish is None, finish


CHECKS = [
    chat,
    stream_is_the_whole_answer,
    over_length_is_a_bad_request,
    wrong_key_is_an_authentication_error,
    a_lost_decode_node_is_an_error,
]

failed = 0
for check in CHECKS:
    try:
        check()
        print(f"ok    openai-python {check.__name__}", flush=True)
    except Exception as e:
        failed += 1
        print(f"FAIL  openai-python {check.__name__}: {type(e).__name__}: {e}", flush=True)
print(f"openai-python {openai.__version__}: {len(CHECKS) - failed} of {len(CHECKS)} passed")
sys.exit(1 if failed else 0)
