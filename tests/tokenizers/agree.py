#!/usr/bin/env python3
"""Compares the token ids of trireme with those of the PyPI package `tokenizers`.

    agree.py TRIREME SCRATCH_DIR [--megabytes N] [--time]

The script trains tokenizers with the pre-tokenizers of GPT-2, LLaMA 3 and Qwen, and with others that use the rest of
the format. The training text is on this machine: the King James Bible and the sources of Python and of this tree. Each
tokenizer then encodes N MB of that text (default 2), samples of many scripts, emoji and control characters, and all
characters of Unicode. With --time, the script instead prints MB/s of one core's time for both programs
(lib/bench/measurements/tokenizers.md): for trireme the whole `data prepare`, for the package `encode` only.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import time
import unicodedata

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

TREE = pathlib.Path(__file__).resolve().parents[2]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"

WHOLE = "a word that is a token"  # used only for llama3; the training text does not contain it
SAMPLES = {
    "greek": "Οὐ γάρ πω τότε τριήρης ἦν· ἔρεσσον δὲ νῆα μέλαιναν",
    "russian": "Трирема — это боевой корабль с тремя рядами вёсел. ",
    "chinese": "三列桨座战船是古代地中海的战舰。人们用桨划船，也用帆。",
    "japanese": "三段櫂船（さんだんかいせん）は、古代の軍船デアル。ｶﾀｶﾅ",
    "korean": "삼단노선은 고대 지중해의 군함이다. 한국어",
    "arabic": "السفينة ثلاثية المجاديف كانت سفينة حربية قديمة، ١٢٣٤",
    "hebrew": "אֳנִיָּה בַּת שָׁלוֹשׁ שׁוּרוֹת מְשׁוֹטִים",
    "hindi": "त्रिरीम एक प्राचीन युद्धपोत था। क्षत्रिय १२३",
    "thai": "เรือรบโบราณสามชั้นพาย ๑๒๓ น้ำ",
    "tamil": "மூன்று வரிசை துடுப்புக் கப்பல்",
    "vietnamese": "Thuyền ba tầng chèo là tàu chiến cổ đại; NFD: " + unicodedata.normalize("NFD", "tiếng Việt"),
    "german": "Die Trière heißt „Dreiruderer“; größer als die Pentekontere. Straße ẞ ﬁ ﬃ",
    "turkish": "Üç sıra kürekli İstanbul ıslak",
    "emoji": "👩‍👩‍👧‍👦 🚣🏽‍♀️🚣 🇬🇷🇮🇹 ❤️‍🔥 ☺︎ 1️⃣ ⛵🏛️ 🫠🫨",
    "math": "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α²+β³≠½ ⅷ ① ½ Ⅳ 𝔸𝕓𝐜 𝟘𝟙",
    "controls": "a\x00b\x01\x02\x07\x08\x0b\x0c\x1b[31m\x7f\x80\x85\x9f\xa0\xad"
                "\u200b\u200e\u202e\ufeff\ufffd\ufffe",
    "spaces": "a  b   c\t\td \u00a0\u2003\u3000 e\u180ef\r\n\r\n  g\n \n\n   h \r i     ",
    "combining": "e\u0301\u0323 a\u0308\u0304 \u1112\u1161\u11ab q\u0307\u0323 \u212b \u2126 \u0958 ﷺ",
    "contractions": "I'm you're WE'LL they'd 's'S 'ſ ’s can't'VE don''t 'ſT",
    "code": "for (int i=0;i<n;++i){\n\t\ta[i]+=0x1F'000u; // ++i\n    }\n\n\n#define X(y) _##y",
    "numbers": "1234567890 3.14159 1,000,000 ٣٤٥٦ ೧೨೩೪ 0b1010 1e-9 12345a67890",
    "long": "a" * 3000 + " " + "xyz" * 700 + "\n" * 400 + " " * 777 + "." * 555 + "字" * 500,
    WHOLE: "three trierarchs, and a trierarchsz or two",
    "tokens": "<|endoftext|>a<|endoftext|><|endoftext|> b <|end <|fim|>  <|fim|> x<<|fim|>> é<ö>é<o\u0308> <|fim|>",
}


def corpus(megabytes):
    """Returns documents of 10 to 20,000 characters, made from text on this machine. Every call returns the same
    ones."""
    rng = random.Random(1)
    parts = []
    bible = subprocess.run(["bible", "gen1:1-rev22:21"], capture_output=True, text=True)
    if bible.returncode == 0:
        parts.append(bible.stdout)
    library = pathlib.Path(os.__file__).parent
    for path in sorted(library.glob("*.py")) + sorted((library / "test").glob("test_*.py"))[:60] + \
            sorted(TREE.glob("*/*/*.cpp")) + sorted(TREE.glob("**/*.md")):
        parts.append(path.read_text(errors="ignore"))
    scripts = [text for name, text in SAMPLES.items() if name != WHOLE]
    words = [word for text in scripts for word in text.split()] + list("😀🎉字が한ñ")
    size, documents = 0, []
    rng.shuffle(parts)
    text = "".join(parts)
    while size < megabytes * 1e6:
        if rng.random() < 0.75:
            begin, length = rng.randrange(len(text)), int(10 ** rng.uniform(1, 4.3))
            document = text[begin:begin + length]
        else:
            between = ["", " ", " ", "  ", "\n", "\t"]
            document = "".join(rng.choice(words) + rng.choice(between) for _ in range(rng.randrange(1, 800)))
        size += len(document.encode())
        documents.append(document)
    return documents


def every_character():
    """Returns texts with all characters of the first two planes and a sample of the later ones of Unicode 16. Each
    occurs between letters, after a space, and twice in a row."""
    points = [*range(0x20000), *range(0x20000, 0x2B700, 64), *range(0x2B700, 0x2EE80, 8), *range(0x31340, 0x323C0, 4),
              0xE0001, 0xE0100, 0x10FFFF]
    points = [point for point in points if not 0xD800 <= point < 0xE000]
    return ["".join(f"b{chr(c)}c {chr(c)} 1{chr(c)}{chr(c)}." for c in points[begin:begin + 64])
            for begin in range(0, len(points), 64)]


def trained(pre_tokenizer, documents, vocab):
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, show_progress=False, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def split(regex, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(regex) if isinstance(regex, str) else regex[0], behavior, invert)


def sequence(*steps):
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def tokenizers_of(documents):
    """Returns {name: tokenizer}: those of models, then one for each further feature of the format."""
    made = {"gpt2": trained(pre_tokenizers.ByteLevel(add_prefix_space=False), documents, 6000),
            "llama3": trained(sequence(split(LLAMA3)), documents, 12000)}
    llama3, gpt2 = made["llama3"], made["gpt2"]
    state = json.loads(llama3.to_str())
    state["model"]["ignore_merges"] = True
    # This word is a token that no merges produce; ignore_merges still uses it.
    state["model"]["vocab"]["Ġtrierarchsz"] = max(state["model"]["vocab"].values()) + 1
    llama3 = made["llama3"] = tokenizers.Tokenizer.from_str(json.dumps(state))
    llama3.add_special_tokens(["<|begin_of_text|>"])
    begin = llama3.token_to_id("<|begin_of_text|>")
    llama3.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)])])

    def variant(of, **settings):
        tokenizer = tokenizers.Tokenizer.from_str(of.to_str())
        for key, value in settings.items():
            setattr(tokenizer, key, value)
        return tokenizer
    made["qwen"] = variant(trained(sequence(split(QWEN)), documents, 8000), normalizer=normalizers.NFC())
    made["qwen"].add_tokens([tokenizers.AddedToken("<|fim|>", normalized=False),
                             tokenizers.AddedToken("é<ö>", normalized=True)])
    made["prefix space"] = variant(gpt2, pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True))
    made["o200k"] = variant(gpt2, pre_tokenizer=sequence(split(O200K)))
    made["deepseek"] = variant(gpt2, pre_tokenizer=sequence(*map(split, DEEPSEEK)))
    made["starcoder"] = variant(gpt2, pre_tokenizer=pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]))
    made["deepseek llm"] = variant(gpt2, pre_tokenizer=sequence(
        split("[\r\n]"), split(r"\s?[A-Za-z]+"), split(r"\s+$"), split(r"^\p{P}"),
        pre_tokenizers.Digits(individual_digits=True)))
    made["digits"] = variant(gpt2, pre_tokenizer=sequence(pre_tokenizers.Digits(individual_digits=False)))
    made["bloom"] = variant(gpt2, pre_tokenizer=sequence(split(BLOOM)))
    made["stripping tokens"] = variant(gpt2)
    made["stripping tokens"].add_tokens([tokenizers.AddedToken("<|fim|>", lstrip=True, rstrip=True, normalized=False)])
    for behavior in ("removed", "merged_with_previous", "merged_with_next", "contiguous"):
        made[behavior] = variant(gpt2, pre_tokenizer=sequence(split([" "], behavior), split(r"\p{P}", behavior)))
        made[behavior + ", inverted"] = variant(gpt2, pre_tokenizer=sequence(split(r"\p{L}+|\s", behavior, True)))
    for form in ("NFD", "NFKC", "NFKD"):
        made[form] = variant(gpt2, normalizer=normalizers.Sequence([getattr(normalizers, form)()]))
    return made


def save(tokenizer, name, scratch):
    folder = scratch / name.replace(" ", "_").replace(",", "")
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def write_documents(path, documents):
    with open(path, "w") as file:
        for document in documents:
            file.write(json.dumps({"text": document}, ensure_ascii=False) + "\n")


def native_ids(trireme, folder, text, out):
    """Runs `data prepare` and returns one array of ids per document, without the token that ends the document."""
    done = subprocess.run([trireme, "data", "prepare", "--tokenizer", folder, "--output", out, "--threads", "1",
                           "--force", text], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{folder}: {done.stderr}")
    with open(f"{out}.idx", "rb") as file:
        index = file.read()
    kind, sequences = index[17], int.from_bytes(index[18:26], "little")
    lengths = np.frombuffer(index, "<i4", sequences, 34)
    tokens = np.fromfile(f"{out}.bin", {4: "<i4", 8: "<u2"}[kind])
    ends = np.cumsum(lengths)
    return [tokens[end - length:end - 1] for end, length in zip(ends, lengths)]


def compare(name, tokenizer, documents, native):
    if len(native) != len(documents):
        sys.exit(f"{name}: {len(native)} documents, expected {len(documents)}")
    count = 0
    for document, actual in zip(documents, native):
        reference = np.array(tokenizer.encode(document).ids, dtype=np.int64)
        if len(reference) != len(actual) or not np.array_equal(reference, actual):
            at = next((i for i, (a, b) in enumerate(zip(reference, actual)) if a != b),
                      min(len(reference), len(actual)))
            near = tokenizer.decode(reference[max(at - 5, 0):at + 5].tolist(), skip_special_tokens=False)
            sys.exit(f"{name}: token {at} of a document is {actual[at:at + 4]}, expected {reference[at:at + 4]}, "
                     f"near {near!r}")
        count += len(actual)
    return count


def measure(trireme, scratch, made, documents):
    size = sum(len(document.encode()) for document in documents)
    for name in ("gpt2", "llama3", "qwen"):
        folder = save(made[name], name, scratch)
        made[name].encode(documents[0])
        start = time.process_time()
        for document in documents:
            made[name].encode(document)
        package = time.process_time() - start
        start = os.times()
        native_ids(trireme, folder, scratch / "text.jsonl", scratch / "out")
        end = os.times()
        seconds = end.children_user + end.children_system - start.children_user - start.children_system
        print(f"{name}: {size / 1e6:.1f} MB: trireme data prepare {size / seconds / 1e6:.1f} MB/s, "
              f"tokenizers {tokenizers.__version__} {size / package / 1e6:.1f} MB/s of one core's time")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trireme")
    parser.add_argument("scratch", type=pathlib.Path)
    parser.add_argument("--megabytes", type=float, default=2)
    parser.add_argument("--time", action="store_true")
    options = parser.parse_args()
    documents = corpus(options.megabytes)
    made = tokenizers_of(documents[:150])
    text = options.scratch / "text.jsonl"
    if options.time:
        write_documents(text, documents)
        measure(options.trireme, options.scratch, made, documents)
        return
    of_models, few = ("gpt2", "llama3", "qwen"), list(SAMPLES.values()) + documents[:40]
    many = list(SAMPLES.values()) + every_character() + documents
    for name, tokenizer in made.items():
        chosen = many if name in of_models else few
        if name == "gpt2":  # has the character classes of llama3, which covers every character
            chosen = list(SAMPLES.values()) + documents
        write_documents(text, chosen)
        native = native_ids(options.trireme, save(tokenizer, name, options.scratch), text, options.scratch / "out")
        print(f"{name}: {compare(name, tokenizer, chosen, native)} tokens of {len(chosen)} documents are equal")
    print("all well")


if __name__ == "__main__":
    main()
