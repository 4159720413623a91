#!/usr/bin/env python3
"""Makes tests/golden/tokenizers/: small tokenisers and what the reference implementations make of some texts.

    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3 sentencepiece==0.2.3
    venv/bin/python tests/golden/make_tokenizers.py

The tokenisers are trained on the standard library of the Python that runs this. cases.json holds the texts and, for
each tokeniser file, their ids without special tokens added; null where the text is left out.
"""
import glob
import io
import json
import os

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizers")
VOCAB = 500

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")

TEXTS = [
    "",
    " ",
    "\n",
    "a",
    "Hello, world!",
    "  two  spaces   three\tand\t\ttabs \n \n\n  after lines   ",
    "def encode(self, text: str) -> list[int]:\n    return [ord(c) for c in text]  # 1234567 numbers\r\n\r\nclass X:\r\n",
    "I'm sure they'll say it's what we've d'accord; WE'RE 'TWAS DON'T 'S 's 'S",
    "'\u017f 'LL 'll 'lL",
    "0 12 345 6789 3.14159 1e-10 0xdeadbeef \u0663\u0664\u0665 \u00bd \u2167 x\u00b2",
    "Gr\u00fc\u00dfe aus K\u00f6ln, \u00e9t\u00e9 \u00e0 la fran\u00e7aise, na\u00efve caf\u00e9",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002 \u3053\u3093\u306b\u3061\u306f \u30c6\u30b9\u30c8 \ud55c\uad6d\uc5b4",
    "\u0421\u044a\u0435\u0448\u044c \u0435\u0449\u0451 \u0395\u03bb\u03bb\u03ac\u03b4\u03b1 \u0639\u0631\u0628\u064a \u05e2\u05d1\u05e8\u05d9\u05ea",
    "\U0001f600 \U0001f469\u200d\U0001f4bb\u2764 \U0001f1e9\U0001f1ea \u2026 \u201cquotes\u201d \u2014 dash",
    "\u00a0nbsp\u00a0\u00a0 \u3000wide \u2028line \u0085next \u200bzero \ufeffbom \x00nul\x00 \x1f\x7f",
    "a\u0301e\u0300 \u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u212b \u1e9b\u0323 \u1100\u1161\u11a8",
    "<|end|>start<|end|><|end|> <|endof|> <|end|>\n<|en<|end_long|>d|> <|end_lon",
    "tabs  and   runs<|tool|>  x <|tool|><|end|>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "x" + " " * 70 + "y" + "\n" * 9 + "z" + "=" * 60,
    "ababababababababab selfselfself returnreturn __init____init__ importimport",
]


def corpus():
    texts = []
    for path in sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py"))):
        with open(path, encoding="utf-8") as file:
            texts.append(file.read())
    return texts + TEXTS * 3


def byte_level(name, texts, pre_tokenizer, **settings):
    tokenizer = Tokenizer(models.BPE(ignore_merges=settings.get("ignore_merges", False)))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.normalizer = settings.get("normalizer")
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCAB, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens(["<|end|>", "<|end_long|>"])
    tokenizer.add_tokens([AddedToken("<|tool|>", normalized=True), AddedToken("  ", normalized=True)]
                         if settings.get("plain_added") else [])
    if settings.get("template"):
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|end|> $A", special_tokens=[("<|end|>", tokenizer.token_to_id("<|end|>"))])])
    content = json.loads(tokenizer.to_str())
    if settings.get("old_merges"):  # as files were written before tokenizers 0.20
        content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
        del content["model"]["type"], content["model"]["ignore_merges"]
    if settings.get("whole_words"):  # words in the vocabulary that no merge makes
        for word in ("\u0120selfselfself", "importimport"):
            content["model"]["vocab"][word] = max(content["model"]["vocab"].values()) + 1
        for token in content["added_tokens"]:
            token["id"] += 2
        content["post_processor"]["processors"][1]["special_tokens"]["<|end|>"]["ids"] = [content["added_tokens"][0]["id"]]
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    with open(os.path.join(OUT, name), "w", encoding="utf-8") as file:
        file.write(text + "\n")
    tokenizer = Tokenizer.from_str(text)
    return {"vocab": max(tokenizer.get_vocab().values()) + 1,
            "ids": [tokenizer.encode(t, add_special_tokens=False).ids if settings.get("takes", lambda _: True)(t) else None
                    for t in TEXTS]}


def sentence_pieces(name, texts):
    model = io.BytesIO()
    lines = [line for text in texts for line in text.split("\n") if line and "\0" not in line]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=VOCAB, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.999, num_threads=1,
        minloglevel=2)
    with open(os.path.join(OUT, name), "wb") as file:
        file.write(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return {"vocab": processor.vocab_size(), "ids": [processor.encode(text) for text in TEXTS]}


def main():
    os.makedirs(OUT, exist_ok=True)
    texts = corpus()
    split = [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    cases = {
        "gpt2.json": byte_level("gpt2.json", texts, pre_tokenizers.ByteLevel(add_prefix_space=False), old_merges=True),
        "llama3.json": byte_level("llama3.json", texts, pre_tokenizers.Sequence(split), ignore_merges=True, template=True,
                                  whole_words=True),
        "nfc-digits.json": byte_level(
            "nfc-digits.json", texts,
            pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)]),
            normalizer=normalizers.NFC(), plain_added=True,
            takes=lambda text: normalizers.NFC().normalize_str(text) == text and "\u0928" not in text),
        "sentencepiece.model": sentence_pieces("sentencepiece.model", texts),
    }
    with open(os.path.join(OUT, "cases.json"), "w", encoding="utf-8") as file:
        file.write("{\n\"texts\": " + json.dumps(TEXTS))
        for name, case in cases.items():
            file.write(",\n" + json.dumps(name) + ": " + json.dumps(case, separators=(",", ":")))
        file.write("\n}\n")


if __name__ == "__main__":
    main()
