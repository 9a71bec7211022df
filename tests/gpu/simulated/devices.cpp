// SPDX-License-Identifier: BSD-3-Clause
#include "devices.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

namespace lockstep::simulated {
namespace {

int device_total() {
  const char* text = std::getenv("LOCKSTEP_SIMULATED_GPUS");
  return text == nullptr ? 1 : std::atoi(text);
}

// As CUDA reads it: indices up to the first that is none.
std::vector<int> visible_numbers() {
  std::vector<int> numbers;
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) {
    for (int i = 0; i < device_total(); ++i) numbers.push_back(i);
    return numbers;
  }
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    const bool is_number =
        !item.empty() && std::ranges::all_of(item, [](char c) { return c >= '0' && c <= '9'; });
    if (!is_number || std::stoi(item) >= device_total()) break;
    numbers.push_back(std::stoi(item));
  }
  return numbers;
}

}  // namespace

std::deque<Device>& devices() {
  static auto* const all = [] {
    auto* made = new std::deque<Device>;  // threads of streams outlive the program's own statics
    for (const int number : visible_numbers()) made->emplace_back(static_cast<int>(made->size()), number);
    return made;
  }();
  return *all;
}

int& current_device() {
  thread_local int device = 0;
  return device;
}

Stream& stream_of(cudaStream_t handle) {
  if (reinterpret_cast<std::uintptr_t>(handle) <= 2) {
    return devices().at(static_cast<std::size_t>(current_device())).standard;
  }
  return *reinterpret_cast<Stream*>(handle);
}

void wait_for_device(int device) {
  auto& waited = devices().at(static_cast<std::size_t>(device));
  std::vector<std::shared_ptr<Fence>> ends{waited.standard.mark()};
  {
    const std::lock_guard lock(waited.mutex);
    for (auto* stream : waited.streams) ends.push_back(stream->mark());
  }
  for (const auto& end : ends) end->wait();
}

std::atomic<cudaError_t>& device_failure() {
  static std::atomic<cudaError_t> failure = cudaSuccess;
  return failure;
}

}  // namespace lockstep::simulated
