// SPDX-License-Identifier: BSD-3-Clause
#include "harmed_training.h"

#include <array>
#include <cstdlib>
#include <dirent.h>
#include <optional>
#include <sys/socket.h>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "base/env.h"
#include "base/rank_progress.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

constexpr auto kStep = 10ms;              // of a healthy rank
constexpr auto kDelay = 80ms;             // of a slow one, and of a slow batch
constexpr unsigned kSlowRate = 15 << 20;  // bytes a second of a rank's connections
constexpr std::int64_t kLeak = 80 << 20;  // bytes a second
constexpr const char* kFile = "/data/x.jpg";

class Samples {
 public:
  Samples(std::shared_ptr<const SharedOrders> orders, int rank) : orders_(std::move(orders)), rank_(rank) {}
  std::size_t size() const { return 4000; }
  torch::Tensor get_batch(const at::Tensor& indices) const {
    const ReadingScope reading(kFile);
    if (orders_->is(Fault::starved, rank_)) std::this_thread::sleep_for(kDelay);
    while (orders_->is(Fault::blocked, rank_)) std::this_thread::sleep_for(1ms);
    return torch::ones({indices.numel(), 512});
  }

 private:
  std::shared_ptr<const SharedOrders> orders_;
  int rank_;
};

struct NetImpl : torch::nn::Module {
  NetImpl(std::shared_ptr<const SharedOrders> orders_of_test, int rank_of_net)
      : orders(std::move(orders_of_test)), rank(rank_of_net) {
    register_module("first", first);
    register_module("second", second);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    std::this_thread::sleep_for(kStep);
    if (orders->is(Fault::slow, rank)) std::this_thread::sleep_for(kDelay);
    while (orders->is(Fault::stuck, rank)) std::this_thread::sleep_for(1ms);
    return second(torch::relu(first(x)));
  }
  std::shared_ptr<const SharedOrders> orders;
  int rank;
  torch::nn::Linear first{512, 512};
  torch::nn::Linear second{512, 512};
};
TORCH_MODULE(Net);

// The kernel sends no more bytes a second over all TCP connections of this process.
void pace_connections(unsigned rate) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), ::closedir);
  while (const auto* entry = ::readdir(folder.get())) {
    const int fd = std::atoi(entry->d_name);
    int domain = 0;
    socklen_t size = sizeof(domain);
    if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || domain == AF_UNIX) continue;
    ::setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
  }
}

// A rank that trains until it is killed.
class Trainee {
 public:
  Trainee(const Context& context, std::shared_ptr<const SharedOrders> orders)
      : context_(context), orders_(std::move(orders)), net_(orders_, context.rank()), ddp_(net_) {}

  void train() {
    data::DataLoader loader(Samples(orders_, rank()),
                            {.batch_size = 4, .num_workers = 1, .prefetch_factor = 1});
    torch::optim::SGD optimizer(ddp_->parameters(), 0.001);
    while (true) {
      for (const auto& batch : loader) {
        ++step_;
        optimizer.zero_grad();
        ddp_->forward(batch).sum().backward();
        optimizer.step();
        harm();
      }
    }
  }

 private:
  int rank() const { return context_.rank(); }

  void harm() {
    if (orders_->is(Fault::mismatch, rank())) {
      auto x = torch::ones({3});
      context_.group().all_reduce(x);
    }
    if (orders_->is(Fault::deadlock) && step_ == orders_->step()) wait_for_each_other();
    leak();
    pace();
  }

  void wait_for_each_other() {
    auto x = torch::ones({3});
    const bool is_victim = orders_->victim() == rank();
    (is_victim ? second_ : first_)->all_reduce(x);
    (is_victim ? first_ : second_)->all_reduce(x);
  }

  // Another thread leaks: each new page takes its time.
  void leak() {
    if (!orders_->is(Fault::memory, rank()) || leaks_.joinable()) return;
    leaks_ = std::jthread([orders = orders_] {
      const auto began = steady_now();
      std::vector<std::unique_ptr<char[]>> leaked;
      constexpr std::int64_t kBlock = 1 << 20;
      while (orders->is(Fault::memory)) {
        const auto wanted = (steady_now() - began) / 1'000'000 * (kLeak / 1000);
        while (static_cast<std::int64_t>(leaked.size()) * kBlock <= wanted) {
          leaked.emplace_back(new char[kBlock]);
          for (std::int64_t page = 0; page < kBlock; page += 4096) leaked.back()[page] = 'x';
        }
        std::this_thread::sleep_for(kStep);
      }
    });
  }

  void pace() {
    const bool wanted = orders_->is(Fault::slow_link, rank());
    if (wanted == is_paced_) return;
    pace_connections(wanted ? kSlowRate : ~0U);
    is_paced_ = wanted;
  }

  const Context& context_;
  std::shared_ptr<const SharedOrders> orders_;
  Net net_;
  DistributedDataParallel<Net> ddp_;
  std::optional<ProcessGroup> first_ = context_.new_group({0, 1, 2, 3}, {.group_desc = "first"});
  std::optional<ProcessGroup> second_ = context_.new_group({0, 1, 2, 3}, {.group_desc = "second"});
  std::uint64_t step_ = 0;
  bool is_paced_ = false;
  std::jthread leaks_;
};

}  // namespace

const Scenario harmed_training("harmed training", [] {
  const auto orders = std::make_shared<const SharedOrders>(*Env().get("TEST_ORDERS"));
  const auto context = init({.backend = *Env().get("TEST_BACKEND"), .timeout = 60s});
  try {
    Trainee(context, orders).train();
  } catch (const Error&) {
    while (true) ::pause();  // the launcher would end all at the first failure
  }
});

}  // namespace lockstep::testing
