"""Files that readers of the documents are assumed to have, as commands that make an example of each."""

_TOKENIZER = (
    "from tokenizers import Tokenizer, models, pre_tokenizers, trainers;"
    "made = Tokenizer(models.BPE());"
    "made.pre_tokenizer = pre_tokenizers.ByteLevel();"
    "made.train_from_iterator(['a few words'] * 9, trainers.BpeTrainer(vocab_size=400,"
    " special_tokens=['<|endoftext|>'], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False));"
    "made.save('tokenizer.json')"
)
_COMPRESSED = (
    "import json, zstandard;"
    "lines = ''.join(json.dumps({'text': f'Article {i}. ' + 'Words of it. ' * 40}) + '\\n' for i in range(50));"
    "open('wiki.jsonl.zst', 'wb').write(zstandard.compress(lines.encode()))"
)

GIVEN = {
    "wiki.jsonl.zst": f'python -c "{_COMPRESSED}"',
    "tokenizer.json": f'python -c "{_TOKENIZER}"',
    "books": "mkdir books && cp LICENSE books/one.txt && cp README.md books/two.md",
    "run.log.gz": "gzip < tests/fixtures/logs/megatron_lm_345m_pp4.log > run.log.gz",
    "notes.md": "cp examples/notes/a100-topologies.md notes.md",
    "job.yaml": "sed 's/dp: 8/dp: 4/' examples/jobs/bloom-176b.yaml > job.yaml",
    "mine.yaml": "trimaran presets fugaku > mine.yaml",
    "here.yaml": "trimaran presets here > here.yaml",
    "before.yaml": "trimaran presets jean-zay-v100-16gb > before.yaml",
    "after.yaml": "trimaran presets jean-zay-v100-32gb > after.yaml",
    "few.sqlite": "trimaran import examples/notes/fugaku-30b.md --ledger few.sqlite",
    "trimaran.sqlite": "trimaran import examples/notes/a100-topologies.md",
    "tokens/mine": "mkdir mine && cp LICENSE mine/text.txt && trimaran data prepare mine -o tokens/mine --bytes",
}
