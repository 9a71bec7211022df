# SPDX-License-Identifier: BSD-3-Clause
"""Language models of the transformers package: language_models.py <folder> <case>...

Writes what write() of model_cases.py does, and what generate() returns."""
import sys

import torch

from model_cases import arguments, write

# transformers imports these where they are installed; it needs none of them here.
for name in ("PIL", "scipy", "sklearn", "torchvision"):
    sys.modules[name] = None
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM  # noqa: E402

NO_TOKENS = {"bos_token_id": None, "eos_token_id": None}
GPT2 = {"vocab_size": 64, "n_positions": 24, "n_embd": 32, "n_layer": 2, "n_head": 4, **NO_TOKENS}
LLAMA = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         **NO_TOKENS}
CASES = {
    # The activation of the original adds up the same polynomial in steps.
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2)),
    "gpt2_fused": lambda: GPT2LMHeadModel(GPT2Config(**GPT2, activation_function="gelu_pytorch_tanh", n_inner=40, attn_pdrop=0,
                                                     layer_norm_epsilon=1e-3, initializer_range=0.1)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA, num_key_value_heads=2)),
    "llama_tied": lambda: LlamaForCausalLM(LlamaConfig(
        **LLAMA, head_dim=16, tie_word_embeddings=True, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-3,
        initializer_range=0.1, rope_parameters={"rope_type": "default", "rope_theta": 500.0})),
}


def generated(net, tokens):
    net.eval()
    # Otherwise tokens that equal the padding count as such.
    options = {"max_new_tokens": 12, "pad_token_id": 0, "attention_mask": torch.ones_like(tokens)}
    greedy = net.generate(tokens, do_sample=False, **options)
    torch.manual_seed(3)
    sampled = net.generate(tokens, do_sample=True, temperature=0.7, top_k=5, **options)
    torch.manual_seed(3)
    defaults = net.generate(tokens, do_sample=True, **options)
    # Ends a sequence that would continue with another token.
    new = greedy[:, tokens.size(1):]
    end = int(new[:, :-1][new[:, 1:] != new[:, :-1]][0])
    ended = net.generate(tokens, do_sample=False, max_new_tokens=12, eos_token_id=end, pad_token_id=end)
    return {"greedy": greedy, "sampled": sampled, "defaults": defaults, "end": end, "ended": ended}


def main():
    folder, names = arguments()
    for name in names:
        write(folder, name, CASES[name], lambda: torch.randint(0, 64, (3, 10)), lambda net, tokens: (net(tokens).logits,),
              generated)


if __name__ == "__main__":
    main()
