// SPDX-License-Identifier: BSD-3-Clause
#include "unit/shm/random_calls.h"

#include <algorithm>
#include <stdexcept>

#include "unit/shm/thread_communicator.h"

namespace lockstep::shm {
namespace {

std::int32_t value(int rank, int call, std::size_t index) {
  return static_cast<std::int32_t>(index * 7 + static_cast<std::size_t>(rank) * 1000 +
                                   static_cast<std::size_t>(call));
}

Numbers sum_of_all(int size, int call, std::size_t begin, std::size_t count) {
  Numbers sum(count);
  for (int rank = 0; rank < size; ++rank) {
    for (std::size_t i = 0; i < count; ++i) sum[i] += value(rank, call, begin + i);
  }
  return sum;
}

// Copies the numbers to this rank's heap if it has room left, otherwise returns nullptr.
std::int32_t* put_on_heap(const Communicator& communicator, const Numbers& numbers, std::size_t& heap_end) {
  const auto bytes = numbers.size() * sizeof(std::int32_t);
  if (heap_end + bytes > ThreadTeam::kHeapBytes) return nullptr;
  auto* const place = reinterpret_cast<std::int32_t*>(communicator.heap(communicator.rank()) + heap_end);
  std::ranges::copy(numbers, place);
  heap_end += (bytes + 63) / 64 * 64;
  return place;
}

// The same pieces of a copy that begins elsewhere.
void move_sources(std::vector<Source>& sources, const Numbers& from, const std::int32_t* to) {
  for (auto& each : sources) {
    each.data = reinterpret_cast<const std::byte*>(to) +
                (each.data - reinterpret_cast<const std::byte*>(from.data()));
  }
}

void append(Numbers& to, const Numbers& more) { to.insert(to.end(), more.begin(), more.end()); }

}  // namespace

Source source(const Numbers& numbers, std::size_t begin, std::size_t count) {
  return {reinterpret_cast<const std::byte*>(numbers.data() + begin), count * sizeof(std::int32_t)};
}

Target target(Numbers& numbers, std::size_t begin, std::size_t count) {
  return {reinterpret_cast<std::byte*>(numbers.data() + begin), count * sizeof(std::int32_t)};
}

Numbers values(int rank, int call, std::size_t begin, std::size_t count) {
  Numbers numbers(count);
  for (std::size_t i = 0; i < count; ++i) numbers[i] = value(rank, call, begin + i);
  return numbers;
}

Drawn draw(Random& random, int size, const std::vector<std::size_t>& most) {
  const auto limit = most[std::uniform_int_distribution<std::size_t>(0, most.size() - 1)(random)];
  return {.kind = static_cast<Kind>(std::uniform_int_distribution<int>(0, 8)(random)),
          .count = std::uniform_int_distribution<std::size_t>(0, limit)(random),
          .root = std::uniform_int_distribution<int>(0, size - 1)(random),
          .on_heap = std::uniform_int_distribution<int>(0, 1)(random) == 1};
}

void Part::check(int call) const {
  if (expected.empty()) return;
  const auto* actual = heap != nullptr ? heap : output.data();
  if (!std::equal(expected.begin(), expected.end(), actual)) {
    throw std::runtime_error("call " + std::to_string(call) + " (" +
                             describe(packed(request), size_of(request)) + ") left wrong numbers");
  }
}

Part prepare(const Communicator& communicator, const Drawn& drawn, int call, std::size_t& heap_end) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  const auto ranks = static_cast<std::size_t>(size);
  const auto n = drawn.count;
  Part part{.request = {.kind = drawn.kind, .element = Element::i32, .root = drawn.root}};
  auto& [request, input, output, expected, heap] = part;
  const bool is_root = rank == drawn.root;
  switch (drawn.kind) {
    case Kind::all_reduce:
    case Kind::reduce:
      output = values(rank, call, 0, n);
      expected = drawn.kind == Kind::all_reduce || is_root ? sum_of_all(size, call, 0, n) : output;
      request.outputs = {target(output, 0, n)};
      break;
    case Kind::broadcast:
      output = values(rank, call, 0, n);
      expected = values(drawn.root, call, 0, n);
      request.outputs = {target(output, 0, n)};
      break;
    case Kind::all_gather:
    case Kind::gather: {
      // Each rank has a different number of elements.
      const auto length = [&](std::size_t of) { return n + of; };
      input = values(rank, call, 0, length(static_cast<std::size_t>(rank)));
      request.inputs = {source(input, 0, input.size())};
      if (drawn.kind == Kind::gather && !is_root) break;
      output.resize(ranks * n + ranks * ranks);
      std::size_t begin = 0;
      for (std::size_t from = 0; from < ranks; ++from) {
        request.outputs.push_back(target(output, begin, length(from)));
        append(expected, values(static_cast<int>(from), call, 0, length(from)));
        begin += length(from);
      }
      break;
    }
    case Kind::scatter:
      output.resize(n);
      expected = values(drawn.root, call, static_cast<std::size_t>(rank) * n, n);
      request.outputs = {target(output, 0, n)};
      if (!is_root) break;
      input = values(rank, call, 0, n * ranks);
      for (std::size_t to = 0; to < ranks; ++to) request.inputs.push_back(source(input, to * n, n));
      break;
    case Kind::reduce_scatter:
      input = values(rank, call, 0, n * ranks);
      output.resize(n);
      expected = sum_of_all(size, call, static_cast<std::size_t>(rank) * n, n);
      for (std::size_t to = 0; to < ranks; ++to) request.inputs.push_back(source(input, to * n, n));
      request.outputs = {target(output, 0, n)};
      break;
    case Kind::all_to_all: {
      // Rank a sends n + a elements to rank b, which start at b * (n + a).
      const auto own = n + static_cast<std::size_t>(rank);
      input = values(rank, call, 0, own * ranks);
      output.resize(ranks * n + ranks * ranks);
      std::size_t begin = 0;
      for (std::size_t other = 0; other < ranks; ++other) {
        request.inputs.push_back(source(input, other * own, own));
        const auto theirs = n + other;
        request.outputs.push_back(target(output, begin, theirs));
        append(expected,
               values(static_cast<int>(other), call, static_cast<std::size_t>(rank) * theirs, theirs));
        begin += theirs;
      }
      break;
    }
    case Kind::barrier:
      break;
  }
  if (!drawn.on_heap) return part;
  if (request.inputs.empty() && !output.empty() && drawn.kind != Kind::gather &&
      drawn.kind != Kind::scatter) {
    heap = put_on_heap(communicator, output, heap_end);
    if (heap != nullptr) request.outputs = {{reinterpret_cast<std::byte*>(heap), n * 4}};
  } else if (const auto* const place = put_on_heap(communicator, input, heap_end)) {
    move_sources(request.inputs, input, place);
  }
  return part;
}

}  // namespace lockstep::shm
