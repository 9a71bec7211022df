// SPDX-License-Identifier: BSD-3-Clause
#include "stream.h"

#include <cstdlib>
#include <random>
#include <thread>

namespace lockstep::simulated {
namespace {

int most_delay() {
  static const int delay = [] {
    const char* text = std::getenv("LOCKSTEP_SIMULATED_GPU_DELAY_US");
    return text == nullptr ? 0 : std::atoi(text);
  }();
  return delay;
}

std::minstd_rand& random_numbers() {
  thread_local std::minstd_rand numbers(std::random_device{}());
  return numbers;
}

void be_late() {
  if (most_delay() <= 0) return;
  const auto delay = random_numbers()() % static_cast<unsigned>(most_delay());
  std::this_thread::sleep_for(std::chrono::microseconds(delay));
}

}  // namespace

void Fence::reach() {
  const std::lock_guard lock(mutex_);
  reached_ = true;
  when_ = std::chrono::steady_clock::now();
  changed_.notify_all();
}

void Fence::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return reached_; });
}

bool Fence::reached() {
  const std::lock_guard lock(mutex_);
  return reached_;
}

std::chrono::steady_clock::time_point Fence::when() {
  const std::lock_guard lock(mutex_);
  return when_;
}

void Stream::add(Work work) {
  const std::lock_guard lock(mutex_);
  if (!started_) std::thread([this] { run(); }).detach();
  started_ = true;
  ++unfinished_;
  works_.push_back(std::move(work));
  changed_.notify_one();
}

std::shared_ptr<Fence> Stream::mark() {
  auto fence = std::make_shared<Fence>();
  if (idle()) {
    fence->reach();
  } else {
    add([fence] { fence->reach(); });
  }
  return fence;
}

bool Stream::idle() {
  const std::lock_guard lock(mutex_);
  return unfinished_ == 0;
}

void Stream::run() {
  while (true) {
    Work work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !works_.empty(); });
      work = std::move(works_.front());
      works_.pop_front();
    }
    be_late();
    work();
    work = {};
    const std::lock_guard lock(mutex_);
    --unfinished_;
  }
}

void run_in_some_order(const Graph& graph) {
  std::map<const Stream*, std::deque<const Node*>> waiting;
  for (const auto& node : graph.nodes) waiting[node.stream].push_back(&node);
  Dependencies done;
  const auto ready = [&](const Node& node) {
    for (const auto& [stream, count] : node.dependencies) {
      if (stream != node.stream && done[stream] < count) return false;
    }
    return true;
  };
  for (std::size_t left = graph.nodes.size(); left > 0; --left) {
    std::vector<std::deque<const Node*>*> choices;
    for (auto& [stream, nodes] : waiting) {
      if (!nodes.empty() && ready(*nodes.front())) choices.push_back(&nodes);
    }
    auto& chosen = *choices.at(random_numbers()() % choices.size());
    const Node& node = *chosen.front();
    chosen.pop_front();
    be_late();
    node.work();
    ++done[node.stream];
  }
}

}  // namespace lockstep::simulated
