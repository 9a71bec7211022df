// SPDX-License-Identifier: BSD-3-Clause
// A rank of a training that continues without the ranks that are killed: elastic_rank <steps> <folder> [mode]
//
// Writes "pid <pid> of <rank> at step <step>" when it begins to train, "trained <rank>: <digest>" at the end. Before its
// last step it waits for the file <folder>/enough. Modes of rank 1, at its first start only:
//   before, after   exits with code 3 before or after elastic::run()
//   throws, leaves  throws, or exits with code 0, in step 5
//   hangs           never ends step 5; nor does rank 2, which sleeps
//   drags           takes 60 ms longer for each step
//   wrong           computes wrongly from step 50 on, which the ranks verify
//   wrong-stop      the same, and no rank is to be replaced for that
//   works           reports progress in step 5 until <folder>/rested exists, while the others wait
// and of all ranks:
//   loads           starting weights and the newest checkpoint before elastic::run(); it writes "loaded <rank>: step <step>".
//                   Ranks 0 and 1 exit with code 3 in step 5 at their first start, after a checkpoint of step 3
//   trainer         the Trainer has the loop: epochs with a validation, early stopping, checkpoints in <folder>
//   trainer-fsdp    the same with shards of the parameters
//   zero            a ZeroRedundancyOptimizer
//   fsdp            the ranks have shards of the parameters
//   fsdp-backward   the same; rank 1 kills itself in backward of step 5 at its first start, and rank 2 freezes after
//                   the recovery
//   gloo, group, zero-shared, sharded, number, unknown, twice   something that elastic::run() refuses
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "faults/small_training.h"

namespace {

using namespace std::chrono_literals;
using lockstep::testing::digest;
using lockstep::testing::make_net;
using lockstep::testing::Numbers;
using lockstep::testing::wait_for;

std::string digest(const lockstep::FSDPModule& sharded) {
  auto tensors = sharded.parameters();
  for (const auto& buffer : sharded.module()->buffers()) tensors.push_back(buffer);
  return digest(tensors);
}

bool is_first_start() {
  const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return restarts != nullptr && std::string(restarts) == "0";
}

// The group's timeout. ELASTIC_RANK_TIMEOUT: seconds.
std::chrono::seconds timeout() {
  const char* seconds = std::getenv("ELASTIC_RANK_TIMEOUT");
  return std::chrono::seconds(seconds == nullptr ? 60 : std::stoi(seconds));
}

// With ELASTIC_RANK_FORGETS a replacement is as one whose launcher has lost its memory: without the commits of this rank,
// and without the copies that it has kept.
void forget_commits() {
  const char* memory = std::getenv("LOCKSTEP_RUN_MEMORY");
  const char* local_rank = std::getenv("LOCAL_RANK");
  if (std::getenv("ELASTIC_RANK_FORGETS") == nullptr || memory == nullptr || is_first_start()) return;
  std::stringstream descriptors(memory);
  std::string word;
  for (int i = 0; i <= std::stoi(local_rank) + 1; ++i) std::getline(descriptors, word, ',');
  if (::ftruncate(std::stoi(word), 0) != 0) throw std::runtime_error("the commits cannot be emptied");
}

// Losses of validations, which decide on the learning rate.
void train_by_trainer(std::int64_t steps, const std::filesystem::path& folder,
                      const lockstep::Context& context, lockstep::ModuleRef module,
                      const std::vector<at::Tensor>& parameters,
                      const std::function<at::Tensor(const at::Tensor&)>& forward,
                      const std::function<std::string()>& digest_of_weights) {
  torch::optim::AdamW optimizer(parameters, 1e-3);
  torch::manual_seed(static_cast<std::uint64_t>(context.rank()));
  lockstep::data::DataLoader loader(Numbers(), {.batch_size = 5, .shuffle = true, .num_workers = 1});
  lockstep::Trainer trainer(module, optimizer,
                            {.max_steps = steps,
                             .accumulation_steps = 2,
                             .checkpoints = folder / "checkpoints",
                             .higher_is_better = false,
                             .async_save = true,
                             .checkpoint_interval = 5,
                             .epochs_per_checkpoint = 4,
                             .metric = "loss",
                             .resume = true,
                             .elastic = true,
                             .log_interval = 7});
  lockstep::optim::ReduceLROnPlateau plateau(optimizer, {.factor = 0.9, .patience = 1});
  trainer.epoch_scheduler(plateau);
  trainer.on_validate([&] {
    const auto inputs = Numbers().get_batch(torch::arange(40) + context.rank());
    const auto loss = torch::nn::functional::cross_entropy(forward(inputs.data), inputs.target);
    return lockstep::Scalars{{"loss", lockstep::reduce_value(loss.item<double>())}};
  });
  bool begins = true;
  trainer.fit(loader, [&](auto& batch) {
    if (std::exchange(begins, false))
      std::cout << "pid " << ::getpid() << " of " << context.rank() << " at step " << trainer.step()
                << std::endl;
    if (trainer.step() + 1 == steps && trainer.batch() % 2 == 0) wait_for(folder / "enough", context);
    return torch::nn::functional::cross_entropy(forward(batch.data), batch.target);
  });
  std::cout << "trained " << context.rank() << ": " << digest_of_weights() << " "
            << optimizer.param_groups()[0].options().get_lr() << std::endl;
}

[[noreturn, gnu::noinline]] void loop_without_end() {
  for (volatile bool is_over = false;
       !is_over;) {  // not atomic, whose functions have frames of their own at -O0
  }
  std::abort();
}

[[noreturn, gnu::noinline]] void sleep_without_end() {
  while (true) std::this_thread::sleep_for(1h);
}

void work_until(const std::filesystem::path& file) {
  std::cout << "works" << std::endl;
  for (double i = 0; !std::filesystem::exists(file); ++i) {
    lockstep::report({{"part", i}});
    std::this_thread::sleep_for(10ms);
  }
}

// Shards of the parameters and of what AdamW keeps for them; the statistics of BatchNorm1d differ between ranks.
void train_sharded(std::int64_t steps, const std::filesystem::path& folder, const lockstep::Context& context,
                   bool fails) {
  torch::manual_seed(7);
  auto net = make_net();
  const lockstep::FullyShardOptions options{.share_memory = false};
  for (std::size_t layer : {0, 4}) lockstep::fully_shard(*net->ptr(layer), options);
  auto sharded = lockstep::fully_shard(net, options);
  torch::optim::AdamW optimizer(sharded.parameters(), 1e-3);
  const auto* const place = sharded.parameters().front().data_ptr();
  torch::nn::Linear teacher(16, 4);  // is not in the state
  for (auto& parameter : teacher->parameters()) parameter.requires_grad_(false);
  lockstep::fully_shard(teacher, options);
  const auto taught = [&](const at::Tensor& inputs) {
    const at::NoGradGuard no_grad;
    return teacher->forward(inputs);
  };
  torch::manual_seed(static_cast<std::uint64_t>(context.rank()));
  lockstep::data::DataLoader loader(Numbers(), {.batch_size = 5, .shuffle = true, .num_workers = 1});
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  lockstep::TrainingState state;
  if (fails) {
    state.add("model", net);
  } else {
    state.add("model", sharded);
  }
  state.add("optimizer", optimizer).add("loader", loader);
  state.add("step", step).add("epoch", epoch).add_generator();
  int begins = 0;
  lockstep::elastic::run(state, [&](const lockstep::Context& of_run) {
    std::cout << "pid " << ::getpid() << " of " << of_run.rank() << " at step " << step << std::endl;
    if (fails && of_run.rank() == 2 && ++begins == 2) loop_without_end();
    for (const auto& shard : sharded.parameters())
      if (shard.grad().defined()) throw std::runtime_error("a failed step has left a gradient");
    if (sharded.stats().steps != 0) throw std::runtime_error("fully_shard() has not begun anew");
    for (; step < steps; ++epoch) {
      loader.set_epoch(epoch);
      bool accumulates = true;
      for (const auto& [inputs, targets] : loader) {
        sharded.set_requires_gradient_sync(!accumulates);
        if (step == 4) sharded.set_reshard_after_forward(false);  // until a recovery
        auto outputs = inputs;
        for (auto layer = net->begin(); layer != net->end(); ++layer) {
          outputs = layer->forward(outputs);
          if (!fails || of_run.rank() != 1 || step != 5 || accumulates || layer - net->begin() != 3) continue;
          outputs.register_hook([](const at::Tensor& gradient) {
            ::raise(SIGKILL);  // when the gradients of layer 4 are being reduced
            return gradient;
          });
        }
        const auto distance = torch::nn::functional::mse_loss(outputs, taught(inputs));
        (torch::nn::functional::cross_entropy(outputs, targets) + distance).backward();
        if (std::exchange(accumulates, !accumulates)) continue;
        if (step + 1 == steps) wait_for(folder / "enough", of_run);
        optimizer.step();
        optimizer.zero_grad();
        ++step;
        state.commit();
        if (step == steps) return;
      }
    }
  });
  if (place != sharded.parameters().front().data_ptr()) throw std::runtime_error("the shards have moved");
  std::cout << "trained " << context.rank() << ": " << digest(sharded) << std::endl;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::vector<at::Tensor>& parameters,
                                                        const std::string& mode) {
  const torch::optim::AdamWOptions options(1e-3);
  if (!mode.starts_with("zero")) return std::make_unique<torch::optim::AdamW>(parameters, options);
  auto zero = std::make_unique<lockstep::ZeroRedundancyOptimizer<torch::optim::AdamW>>(parameters, options);
  if (mode == "zero-shared") zero->share_parameters();
  return zero;
}

void train(std::int64_t steps, const std::filesystem::path& folder, const std::string& mode) {
  forget_commits();
  const auto context = lockstep::init({.backend = mode == "gloo" ? "gloo" : "auto", .timeout = timeout()});
  const bool is_first = is_first_start();
  const auto exit_if = [&](const char* wanted) {
    if (mode == wanted && context.rank() == 1 && is_first) std::_Exit(3);
  };
  if (mode.starts_with("fsdp")) {
    return train_sharded(steps, folder, context, mode == "fsdp-backward" && is_first);
  }
  torch::manual_seed(7);
  auto net = make_net();
  if (mode == "trainer-fsdp") {
    const auto sharded = lockstep::fully_shard(net, {.share_memory = false});
    return train_by_trainer(
        steps, folder, context, net, sharded.parameters(),
        [&](const at::Tensor& input) { return net->forward(input); }, [&] { return digest(sharded); });
  }
  if (mode == "loads") lockstep::share_starting_weights(net, folder / "start.pt");
  lockstep::DistributedDataParallel ddp(net);
  if (mode == "trainer") {
    return train_by_trainer(
        steps, folder, context, ddp, ddp->parameters(),
        [&](const at::Tensor& input) { return ddp->forward(input); }, [&] { return digest(*net); });
  }
  const auto optimizer = make_optimizer(ddp->parameters(), mode);
  std::optional<lockstep::ProcessGroup> other;
  if (mode == "group") other = context.new_group({0, 1});
  auto unsupported = make_net();
  lockstep::FullyShardOptions sharding{.share_memory = mode == "sharded"};
  if (mode == "number") sharding.reshard_after_forward = 1;
  std::optional<lockstep::FSDPModule> shards;
  if (mode == "sharded" || mode == "number" || mode == "unknown")
    shards = fully_shard(*unsupported, sharding);
  std::optional<torch::optim::SGD> of_shards;
  torch::manual_seed(static_cast<std::uint64_t>(context.rank()));
  lockstep::data::DataLoader loader(Numbers(), {.batch_size = 5, .shuffle = true, .num_workers = 1});
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  lockstep::TrainingState state;
  state.add("model", ddp).add("optimizer", *optimizer).add("loader", loader);
  state.add("step", step).add("epoch", epoch).add_generator();

  if (mode == "number") state.add("sharded", unsupported);
  if (mode == "unknown") state.add("of shards", of_shards.emplace(shards->parameters(), 0.1));
  std::optional<lockstep::StepVerifier> verifier;
  const bool is_wrong = mode.starts_with("wrong");
  if (is_wrong) {
    const lockstep::StepVerifierOptions verified{
        .interval = 10,
        .all_ranks = true,
        .on_mismatch = mode == "wrong-stop" ? lockstep::OnMismatch::stop : lockstep::OnMismatch::replace,
        .accumulation_steps = 2,
        .optimizer = optimizer.get()};
    state.add("verifier", verifier.emplace(ddp, verified));
  }
  const auto pass = [&](lockstep::data::Batch& batch) {
    auto outputs = ddp->forward(batch.data);
    if (is_wrong && step >= 49 && context.rank() == 1 && is_first) outputs = outputs * 1.001;
    torch::nn::functional::cross_entropy(outputs, batch.target).backward();
  };
  const auto checkpoints = folder / "checkpoints";
  if (mode == "loads") {
    if (const auto saved = lockstep::CheckpointManager(checkpoints).load_latest()) {
      state.load_state_dict(saved->contents.as_dict());
      std::cout << "loaded " << context.rank() << ": step " << step << std::endl;
    }
  }
  exit_if("before");
  lockstep::elastic::run(state, [&](const lockstep::Context& of_run) {
    std::cout << "pid " << ::getpid() << " of " << of_run.rank() << " at step " << step << std::endl;
    for (; step < steps; ++epoch) {
      loader.set_epoch(epoch);
      bool accumulates = true;
      for (auto& batch : loader) {
        std::optional<lockstep::NoSync> no_sync;
        if (accumulates) no_sync.emplace(ddp->no_sync());
        verifier ? verifier->run(batch, pass) : pass(batch);
        if (std::exchange(accumulates, !accumulates)) continue;
        if (step + 1 == steps) wait_for(folder / "enough", of_run);
        optimizer->step();
        optimizer->zero_grad();
        ++step;
        if (step == 5 && mode == "throws" && context.rank() == 1 && is_first)
          throw std::runtime_error("a mistake");
        if (step == 5 && mode == "loads" && context.rank() < 2 && is_first) std::_Exit(3);
        if (step == 5 && mode == "leaves" && context.rank() == 1 && is_first) std::_Exit(0);
        if (step == 5 && mode == "hangs" && context.rank() == 1 && is_first) loop_without_end();
        if (step == 5 && mode == "hangs" && context.rank() == 2 && is_first) sleep_without_end();
        if (mode == "drags" && context.rank() == 1 && is_first) std::this_thread::sleep_for(150ms);
        if (step == 5 && mode == "works" && context.rank() == 1) work_until(folder / "rested");
        state.commit();
        if (step == 3 && mode == "loads")
          lockstep::CheckpointManager(checkpoints).save(step, state.state_dict());
        if (step == steps) return;
      }
    }
  });
  if (mode == "twice") lockstep::elastic::run(state, [](const lockstep::Context&) {});
  exit_if("after");
  std::cout << "trained " << context.rank() << ": " << digest(*net) << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  try {
    train(std::atoll(argv[1]), argv[2], argc > 3 ? argv[3] : "");
  } catch (const std::exception& error) {
    std::cerr << "elastic_rank: " << error.what() << std::endl;
    return 1;
  }
}
