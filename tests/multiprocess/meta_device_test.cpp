// SPDX-License-Identifier: BSD-3-Clause
// Modules that are constructed on device meta, sharded, and initialized or loaded then.
#include <algorithm>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/checkpoint/distributed_checkpoint.h>
#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/device/device.h>
#include <lockstep/fsdp/state_dict.h>
#include <lockstep/models/language.h>
#include <lockstep/optim/fused.h>
#include <lockstep/rendezvous/init.h>

#include "support/error_of.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::testing::meta_device_test {
namespace {

using ::testing::HasSubstr;
using torch::nn::Linear;
using torch::nn::Sequential;

// One after the other: the order in which arguments of a function are constructed is unspecified.
Sequential make_normed() {
  torch::manual_seed(5);
  Sequential net;
  net->push_back(Linear(7, 9));
  net->push_back(torch::nn::BatchNorm1d(9));
  net->push_back(torch::nn::Tanh());
  net->push_back(Linear(9, 3));
  return net;
}

// BatchNorm1d of LibTorch has no bfloat16 parameters.
Sequential make_linear() {
  torch::manual_seed(5);
  Sequential net;
  net->push_back(Linear(7, 9));
  net->push_back(torch::nn::Tanh());
  net->push_back(Linear(9, 3));
  return net;
}

template <class Make>
auto on_meta(const Make& make) {
  const DeviceContext meta(at::kMeta);
  return make();
}

FSDPModule shard_layers(const Sequential& net, const FullyShardOptions& options) {
  for (const auto& layer : *net)
    if (!layer.ptr()->parameters().empty()) fully_shard(*layer.ptr(), options);
  return fully_shard(net.ptr(), options);
}

void reset_parameters(torch::nn::Module& module) {
  if (auto* const linear = module.as<Linear>()) linear->reset_parameters();
  if (auto* const norm = module.as<torch::nn::BatchNorm1d>()) norm->reset_parameters();
}

TEST(DeviceContext, CreatesTensorsOnADevice) {
  at::Tensor given;
  const auto net = on_meta([&] {
    given = torch::ones({2}, at::TensorOptions(at::kCPU));
    const auto inner = [] {
      const DeviceContext cpu(at::kCPU);
      return torch::rand({2});
    };
    EXPECT_TRUE(inner().is_cpu());
    EXPECT_TRUE(torch::randn({1'000'000'000'000}).is_meta());
    EXPECT_TRUE(torch::arange(5).is_meta());
    EXPECT_TRUE(torch::tensor(1).is_meta());
    EXPECT_TRUE(torch::zeros_like(given).is_cpu());
    return make_normed();
  });
  EXPECT_TRUE(given.is_cpu());
  EXPECT_TRUE(torch::ones({2}).is_cpu());
  EXPECT_FALSE(net->parameters().empty());
  for (const auto& each : net->parameters()) EXPECT_TRUE(each.is_meta() && each.requires_grad());
  for (const auto& each : net->buffers()) EXPECT_TRUE(each.is_meta());
}

TEST(ToEmpty, InitializesAModuleOfOneProcess) {
  auto net = on_meta(make_normed);
  const auto plain = make_normed();
  torch::manual_seed(5);
  to_empty(*net, {.param_init_fn = reset_parameters});
  for (const auto& [name, expected] : plain->named_parameters().pairs())
    EXPECT_TRUE(net->named_parameters()[name].equal(expected)) << name;
  net->forward(torch::ones({2, 7})).sum().backward();
}

const Scenario meta_init("meta initialized", [] {
  const auto context = init({.backend = "shm"});
  for (const bool shared : {true, false}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(std::string(shared ? "shared " : "gathered ") + c10::toString(dtype));
      FullyShardOptions options{.share_memory = shared};
      if (dtype != at::kFloat) options.mp_policy.param_dtype = dtype;
      const auto make = dtype == at::kFloat ? make_normed : make_linear;
      auto plain = make();
      auto net = on_meta(make);
      const auto expected = shard_layers(plain, options), sharded = shard_layers(net, options);
      optim::FusedAdamW reference(expected.parameters(), 1e-2), optimizer(sharded.parameters(), 1e-2);
      const auto x = torch::full({4, 7}, 0.1 * context.rank()).to(dtype);
      EXPECT_THAT(error_of<ArgumentError>([&] { net->forward(x); }), HasSubstr("is on device meta"));
      EXPECT_THAT(error_of<ArgumentError>([&] { get_model_state_dict(sharded); }),
                  HasSubstr("0.weight is on device meta"));
      torch::manual_seed(5);
      to_empty(*net, {.param_init_fn = reset_parameters});
      for (int step = 0; step < 3; ++step) {
        for (auto* each : {&reference, &optimizer}) each->zero_grad();
        const auto loss = net->forward(x).sum(), other = plain->forward(x).sum();
        EXPECT_TRUE(loss.equal(other)) << step;
        loss.backward();
        other.backward();
        for (auto* each : {&reference, &optimizer}) each->step();
      }
      const auto left = sharded.parameters(), right = expected.parameters();
      for (std::size_t i = 0; i < left.size(); ++i) EXPECT_TRUE(left[i].equal(right[i])) << i;
    }
  }
});
TEST(MetaDevice, InitializesAsOnTheCpu) { expect_all_passed(run_ranks(meta_init, {.world_size = 3})); }

// A model with tied weights and buffers.
const Scenario meta_gpt("meta gpt", [] {
  const auto context = init({.backend = "shm"});
  const auto make = [] {
    torch::manual_seed(5);
    return models::GPT2(
        models::GPT2Options{.vocab_size = 30, .n_positions = 8, .n_embd = 16, .n_layer = 2, .n_head = 2});
  };
  for (const bool shared : {true, false}) {
    auto plain = make();
    auto net = on_meta(make);
    const auto expected = fully_shard(*plain, {.share_memory = shared});
    const auto sharded = fully_shard(*net, {.share_memory = shared});
    to_empty(*net);
    set_model_state_dict(sharded, get_model_state_dict(expected, {.full_state_dict = true}));
    const auto tokens = torch::randint(30, {2, 8});
    plain->eval();
    net->eval();
    const auto loss = net->forward(tokens).pow(2).mean(), other = plain->forward(tokens).pow(2).mean();
    EXPECT_TRUE(loss.equal(other));
    loss.backward();
    other.backward();
    const auto left = sharded.parameters(), right = expected.parameters();
    for (std::size_t i = 0; i < left.size(); ++i) EXPECT_TRUE(left[i].grad().equal(right[i].grad())) << i;
  }
});
TEST(MetaDevice, HasTiedWeights) { expect_all_passed(run_ranks(meta_gpt)); }

// The most memory that a thread's tensors have at a time.
class PeakOfTensors final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t peak() const { return peak_; }

 private:
  std::int64_t now_ = 0;
  std::int64_t peak_ = 0;
};

constexpr std::int64_t kWideLayers = 8, kWideWidth = 128,
                       kWideBytes = kWideLayers * kWideWidth * kWideWidth * 4;

Sequential make_wide() {
  Sequential net;
  for (int i = 0; i < kWideLayers; ++i)
    net->push_back(Linear(torch::nn::LinearOptions(kWideWidth, kWideWidth).bias(false)));
  return net;
}

const Scenario loads_rows("meta loaded", [] {
  const auto context = init({.backend = "gloo"});
  const TempFolder own;
  const auto folder = context.group().broadcast_object(own.path().string(), 0) + "/step";
  torch::manual_seed(1);
  auto plain = make_wide();
  const auto saved = shard_layers(plain, {});
  distributed_checkpoint::save(get_model_state_dict(saved), folder);
  save_pretrained(saved, folder + "/hub", {.max_shard_size = kWideBytes / 2});

  const auto x = torch::ones({2, kWideWidth});
  const auto check = [&](const std::function<void(const FSDPModule&)>& load) {
    const auto memory = std::make_shared<PeakOfTensors>();
    std::optional<c10::DebugInfoGuard> counting(std::in_place, c10::DebugInfoKind::PROFILER_STATE, memory);
    auto net = on_meta(make_wide);
    const auto sharded = shard_layers(net, {});
    to_empty(*net);
    load(sharded);
    counting.reset();
    EXPECT_LE(memory->peak(), kWideBytes / context.world_size() + kWideBytes / kWideLayers);
    EXPECT_GE(memory->peak(), kWideBytes / context.world_size());
    EXPECT_TRUE(net->forward(x).equal(plain->forward(x)));
  };
  check([&](const FSDPModule& sharded) {
    auto weights = get_model_state_dict(sharded);
    distributed_checkpoint::load(weights, folder);
  });
  check([&](const FSDPModule& sharded) { load_pretrained(sharded, folder + "/hub"); });
});
TEST(MetaDevice, LoadsItsRowsOnly) { expect_all_passed(run_ranks(loads_rows)); }

const Scenario failed_to_empty("meta to_empty() failed", [] {
  const auto context = init({.backend = "shm"});
  auto net = on_meta(make_linear);
  const auto sharded = shard_layers(net, {.share_memory = false});
  EXPECT_NE(error_of<c10::Error>([&] { to_empty(*net, {.device = at::Device(at::kXLA, 0)}); }), "");
  const auto says_why = AllOf(HasSubstr("to_empty() failed: "), HasSubstr("(at meta_device_test.cpp:"),
                              HasSubstr("build the module anew"));
  EXPECT_THAT(error_of<Error>([&] { net->forward(torch::ones({4, 7})); }), says_why);
  EXPECT_THAT(error_of<Error>([&] { to_empty(*net); }), says_why);
});
TEST(MetaDevice, AnErrorSaysThatToEmptyFailed) { expect_all_passed(run_ranks(failed_to_empty)); }

const Scenario meta_pretrained("meta pretrained", [] {
  const auto context = init({.backend = "shm"});
  const TempFolder own;
  const auto folder = context.group().broadcast_object(own.path().string(), 0);
  for (const bool shared : {true, false}) {
    auto plain = make_normed();
    auto net = on_meta(make_normed);
    const auto expected = shard_layers(plain, {.share_memory = shared});
    const auto sharded = shard_layers(net, {.share_memory = !shared});
    save_pretrained(expected, folder, {.max_shard_size = 150});
    to_empty(*net);
    load_pretrained(sharded, folder);
    const auto left = sharded.parameters(), right = expected.parameters();
    for (std::size_t i = 0; i < left.size(); ++i) EXPECT_TRUE(left[i].equal(right[i])) << i;
    auto whole = make_linear();
    const auto report = lockstep::load_pretrained(*whole, folder, {.partial = true});
    EXPECT_EQ(report.loaded_keys.size(), 2);
    context.barrier();
  }
  EXPECT_NE(error_of<CheckpointError>(
                [&] { save_pretrained(shard_layers(make_linear(), {}), "/proc/nowhere", {}); }),
            "");
});
TEST(MetaDevice, LoadsFilesOfModelHubs) { expect_all_passed(run_ranks(meta_pretrained, {.world_size = 3})); }

}  // namespace
}  // namespace lockstep::testing::meta_device_test
