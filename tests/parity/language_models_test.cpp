// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/models/language.h>
#include <lockstep/serialize/torch_file.h>

#include "parity/model_case.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using namespace models;

GPT2 make_gpt2() {
  return GPT2(GPT2Options{.vocab_size = 64, .n_positions = 24, .n_embd = 32, .n_layer = 2, .n_head = 4});
}

GPT2 make_gpt2_fused() {
  return GPT2(GPT2Options{.vocab_size = 64,
                          .n_positions = 24,
                          .n_embd = 32,
                          .n_layer = 2,
                          .n_head = 4,
                          .n_inner = 40,
                          .attn_pdrop = 0,
                          .layer_norm_epsilon = 1e-3,
                          .initializer_range = 0.1});
}

Llama make_llama() {
  return Llama(LlamaOptions{.vocab_size = 64,
                            .hidden_size = 32,
                            .intermediate_size = 48,
                            .num_hidden_layers = 2,
                            .num_attention_heads = 4,
                            .num_key_value_heads = 2});
}

Llama make_llama_tied() {
  return Llama(LlamaOptions{.vocab_size = 64,
                            .hidden_size = 32,
                            .intermediate_size = 48,
                            .num_hidden_layers = 2,
                            .num_attention_heads = 4,
                            .head_dim = 16,
                            .rms_norm_eps = 1e-3,
                            .rope_theta = 500,
                            .initializer_range = 0.1,
                            .tie_word_embeddings = true,
                            .attention_bias = true,
                            .mlp_bias = true});
}

const std::vector<ModelCase> kLanguageCases{
    {"gpt2", [] { return subject_of(make_gpt2()); }, 1e-5},
    {"gpt2_fused", [] { return subject_of(make_gpt2_fused()); }},
    {"llama", [] { return subject_of(make_llama()); }},
    {"llama_tied", [] { return subject_of(make_llama_tied()); }},
};

class LanguageModels : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    threads_ = at::get_num_threads();
    at::set_num_threads(1);  // as in Python, for equal bits
    exchange_with_python("parity/language_models.py", folder(), kLanguageCases);
  }
  static void TearDownTestSuite() {
    at::set_num_threads(threads_);
    folder_.reset();
  }
  static std::string folder() { return folder_->path().string(); }

  template <typename Net>
  static void expect_generates(const std::string& name, Net net) {
    SCOPED_TRACE(name);
    const auto python = load(folder() + "/" + name + ".pt");
    load_state_dict(net, python["state"].as_dict());
    net->eval();
    const auto expect = [&](const std::string& key, GenerateOptions options) {
      options.max_new_tokens = 12;
      for (const bool cached : {true, false}) {
        options.use_cache = cached;
        torch::manual_seed(3);
        const auto tokens = net->generate(python["input"].as_tensor(), options);
        EXPECT_TRUE(torch::equal(tokens, python[key].as_tensor())) << key << (cached ? ", cached" : "");
      }
    };
    expect("greedy", {});
    expect("sampled", {.do_sample = true, .temperature = 0.7, .top_k = 5});
    expect("defaults", {.do_sample = true});
    expect("ended", {.eos_token_id = python["end"].as_int()});
  }

  static std::unique_ptr<TempFolder> folder_;
  static int threads_;
};

std::unique_ptr<TempFolder> LanguageModels::folder_;
int LanguageModels::threads_ = 0;

TEST_F(LanguageModels, ArePythons) {
  for (const auto& test_case : kLanguageCases) expect_pythons(test_case, folder());
}

TEST_F(LanguageModels, GeneratePythonsTokens) {
  expect_generates("gpt2", make_gpt2());
  expect_generates("gpt2_fused", make_gpt2_fused());
  expect_generates("llama", make_llama());
  expect_generates("llama_tied", make_llama_tied());
}

template <typename Net>
void expect_cached_logits(Net net) {
  net->eval();
  const torch::NoGradGuard no_grad;
  const auto tokens = torch::randint(64, {2, 9}, torch::kLong);
  const auto whole = net->forward(tokens);
  DynamicCache cache;
  std::vector<at::Tensor> parts;
  for (const auto& part : tokens.split({4, 1, 4}, 1)) parts.push_back(net->forward(part, &cache));
  EXPECT_EQ(cache.get_seq_length(), 9);
  EXPECT_TRUE(torch::allclose(torch::cat(parts, 1), whole, 1e-4, 1e-6));
}

TEST(ModelDetails, CachesContinueWithAnyNumberOfTokens) {
  expect_cached_logits(make_gpt2());
  expect_cached_logits(make_llama());
}

TEST(ModelDetails, TiedWeightsAreListedOnce) {
  auto net = make_gpt2();
  EXPECT_EQ(net->parameters().size() + 1, state_dict(net).size());
  EXPECT_EQ(make_llama()->parameters().size(), state_dict(make_llama()).size());
  auto tied = make_llama_tied();
  EXPECT_EQ(tied->parameters().size() + 1, state_dict(tied).size());

  // Files of the transformers package have one name only.
  const TempFolder folder;
  auto state = state_dict(net);
  state.erase("lm_head.weight");
  save(without_prefix(state, "transformer."), folder.file("net.pt"), {.sync = false});
  auto other = make_gpt2();
  load_pretrained(other, folder.file("net.pt"), {.add_prefix = "transformer."});
  EXPECT_TRUE(equal(state_dict(other), state_dict(net)));
}

TEST(ModelDetails, LanguageErrorsNameTheValue) {
  auto net = make_gpt2();
  const auto tokens = torch::zeros({1, 20}, torch::kLong);
  const auto message = [&](const GenerateOptions& options) {
    return error_of<ArgumentError>([&] { net->generate(tokens, options); });
  };
  const auto expect_in = [](const std::string& part, const std::string& text) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect_in("max_new_tokens = 5 exceed n_positions = 24", message({.max_new_tokens = 5}));
  expect_in("no effect without do_sample", message({.max_new_tokens = 1, .temperature = 0.5}));
  expect_in("temperature = 0", message({.max_new_tokens = 1, .do_sample = true, .temperature = 0}));
  expect_in("top_k = -1", message({.max_new_tokens = 1, .do_sample = true, .top_k = -1}));
  expect_in("with 25 tokens", error_of<ArgumentError>([&] {
              net->forward(torch::zeros({1, 25}, torch::kLong));
            }));
  GPT2 custom(GPT2Options{.vocab_size = 5,
                          .n_positions = 8,
                          .n_embd = 4,
                          .n_layer = 1,
                          .n_head = 1,
                          .attn_pdrop = 0,
                          .attn_implementation = [](auto& queries, auto&, auto&) { return queries; }});
  const auto prompt = torch::zeros({1, 2}, torch::kLong);
  expect_in("use_cache = false",
            error_of<ArgumentError>([&] { custom->generate(prompt, {.max_new_tokens = 2}); }));
  EXPECT_EQ(custom->generate(prompt, {.max_new_tokens = 2, .use_cache = false}).size(1), 4);
  expect_in("n_head = 5", error_of<ArgumentError>([] { GPT2 wrong(GPT2Options{.n_head = 5}); }));
  expect_in("num_key_value_heads = 3",
            error_of<ArgumentError>([] { Llama wrong(LlamaOptions{.num_key_value_heads = 3}); }));
}

}  // namespace
}  // namespace lockstep::testing
