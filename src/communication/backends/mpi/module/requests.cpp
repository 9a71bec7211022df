// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/module/requests.h"

#include <functional>
#include <numeric>

#include "backends/mpi/module/types.h"

namespace lockstep::mpi {
namespace {

using shm::Request;
using shm::Source;
using shm::Target;

// MPICH 4.0 crashes in MPI_Reduce in place with a root other than rank 0.
#ifdef OPEN_MPI
constexpr bool kReducesInPlace = true;
#else
constexpr bool kReducesInPlace = false;
#endif

constexpr std::size_t kLargestCount = std::size_t{1} << 30U;

int rank_in(MPI_Comm group) {
  int rank = 0;
  MPI_Comm_rank(group, &rank);
  return rank;
}

template <class Part>
std::size_t bytes_of(const std::vector<Part>& parts) {
  return std::accumulate(parts.begin(), parts.end(), std::size_t{0},
                         [](std::size_t sum, const Part& part) { return sum + part.bytes; });
}

template <class Part>
bool is_row(const std::vector<Part>& parts) {
  const auto follows = [](const Part& one, const Part& next) { return one.data + one.bytes == next.data; };
  return std::ranges::adjacent_find(parts, std::not_fn(follows)) == parts.end();
}

bool overlap(const Source& one, const Target& other) {
  return one.data < other.data + other.bytes && other.data < one.data + one.bytes;
}

// The inputs one behind the other, apart from `output`: MPI forbids memory that is sent and received.
const std::byte* row_of(const std::vector<Source>& inputs, const Target& output, Requests& requests) {
  const auto in_way = [&](const Source& input) { return overlap(input, output); };
  if (is_row(inputs) && std::ranges::none_of(inputs, in_way)) return inputs.front().data;
  auto* const row = requests.room(bytes_of(inputs));
  auto* end = row;
  for (const auto& input : inputs) end = std::copy_n(input.data, input.bytes, end);
  return row;
}

// Memory for all outputs one behind the other, apart from `input`.
std::byte* row_for(const std::vector<Target>& outputs, const Source& input, Requests& requests) {
  const auto in_way = [&](const Target& output) { return overlap(input, output); };
  if (is_row(outputs) && std::ranges::none_of(outputs, in_way)) return outputs.front().data;
  auto* const row = requests.room(bytes_of(outputs));
  const auto* start = row;
  for (const auto& output : outputs) {
    requests.copy_later(output.data, start, output.bytes);
    start += output.bytes;
  }
  return row;
}

// Calls `one` for pieces whose number of elements MPI can count.
template <class One>
void in_pieces(std::size_t bytes, std::size_t element_bytes, const One& one) {
  const auto piece = kLargestCount * element_bytes;
  for (std::size_t start = 0; start < bytes; start += piece) {
    one(start, static_cast<int>(std::min(piece, bytes - start) / element_bytes));
  }
}

void all_reduce(const Request& request, MPI_Comm group, Requests& requests) {
  const auto& [data, bytes] = request.outputs.front();
  const auto type = type_of(request.element);
  const auto op = operator_of(request.element, request.reduction);
  in_pieces(bytes, size_of(request.element), [&, memory = data](std::size_t start, int count) {
    requests.call<MPI_Allreduce, MPI_Iallreduce>("MPI_Allreduce", static_cast<const void*>(MPI_IN_PLACE),
                                                 static_cast<void*>(memory + start), count, type, op, group);
  });
}

void reduce_to(int root, const std::byte* in, std::byte* out, std::size_t bytes, const Request& request,
               MPI_Comm group, Requests& requests) {
  const auto type = type_of(request.element);
  const auto op = operator_of(request.element, request.reduction);
  const bool here = rank_in(group) == root;
  const bool in_place = here && in == out && kReducesInPlace;
  if (here && in == out && !in_place) in = requests.copy_of({in, bytes});
  in_pieces(bytes, size_of(request.element), [&](std::size_t start, int count) {
    const void* const from = in_place ? MPI_IN_PLACE : static_cast<const void*>(in + start);
    void* const to = here ? out + start : nullptr;
    requests.call<MPI_Reduce, MPI_Ireduce>("MPI_Reduce", from, to, count, type, op, root, group);
  });
}

void reduce(const Request& request, MPI_Comm group, Requests& requests) {
  const auto& [data, bytes] = request.outputs.front();
  reduce_to(request.root, data, data, bytes, request, group, requests);
}

void reduce_scatter(const Request& request, MPI_Comm group, Requests& requests) {
  const auto& output = request.outputs.front();
  if (output.bytes == 0) return;
  const auto* const row = row_of(request.inputs, output, requests);
  const auto count = output.bytes / size_of(request.element);
  // Open MPI's non-blocking form counts the elements of all ranks in an int.
  if (count * request.inputs.size() <= kLargestCount) {
    requests.call<MPI_Reduce_scatter_block, MPI_Ireduce_scatter_block>(
        "MPI_Reduce_scatter_block", static_cast<const void*>(row), static_cast<void*>(output.data),
        static_cast<int>(count), type_of(request.element), operator_of(request.element, request.reduction),
        group);
    return;
  }
  for (std::size_t root = 0; root < request.inputs.size(); ++root) {
    reduce_to(static_cast<int>(root), row + root * output.bytes, output.data, output.bytes, request, group,
              requests);
  }
}

void broadcast(const Request& request, MPI_Comm group, Requests& requests) {
  const auto& [data, bytes] = request.outputs.front();
  if (bytes == 0) return;
  const Extent extent(bytes);
  requests.call<MPI_Bcast, MPI_Ibcast>("MPI_Bcast", static_cast<void*>(data), extent.count(), extent.type(),
                                       request.root, group);
}

void send_to(int peer, int tag, const std::byte* data, std::size_t bytes, MPI_Comm group,
             Requests& requests) {
  const Extent extent(bytes);
  check(MPI_Isend(data, extent.count(), extent.type(), peer, tag, group, requests.next()), "MPI_Isend");
}

void receive_from(int peer, int tag, std::byte* data, std::size_t bytes, MPI_Comm group, Requests& requests) {
  const Extent extent(bytes);
  check(MPI_Irecv(data, extent.count(), extent.type(), peer, tag, group, requests.next()), "MPI_Irecv");
}

// Receives that are started before the sends find their place when the data arrives.
void exchange(const Request& request, MPI_Comm group, int tag, Requests& requests) {
  const int own = rank_in(group);
  const int size = static_cast<int>(request.outputs.size());
  for (int step = 1; step < size; ++step) {
    const int peer = (own - step + size) % size;
    const auto& output = request.outputs[static_cast<std::size_t>(peer)];
    if (output.bytes > 0) receive_from(peer, tag, output.data, output.bytes, group, requests);
  }
  for (int step = 1; step < size; ++step) {
    const int peer = (own + step) % size;
    const auto& input = request.inputs[static_cast<std::size_t>(peer)];
    if (input.bytes > 0) send_to(peer, tag, input.data, input.bytes, group, requests);
  }
  const auto self = static_cast<std::size_t>(own);
  const auto& kept = request.outputs[self];
  if (kept.bytes > 0) std::memmove(kept.data, request.inputs[self].data, kept.bytes);
  if (requests.blocks()) requests.finish();
}

// All ranks know all sizes, so they choose alike.
void all_gather(const Request& request, MPI_Comm group, int tag, Requests& requests) {
  const auto& input = request.inputs.front();
  const auto& outputs = request.outputs;
  const bool is_even =
      std::ranges::all_of(outputs, [&](const Target& output) { return output.bytes == input.bytes; });
  if (!is_even) {
    auto each = request;
    each.inputs.assign(outputs.size(), input);
    return exchange(each, group, tag, requests);
  }
  if (input.bytes == 0) return;
  auto* const row = row_for(outputs, input, requests);
  const Extent extent(input.bytes);
  requests.call<MPI_Allgather, MPI_Iallgather>("MPI_Allgather", static_cast<const void*>(input.data),
                                               extent.count(), extent.type(), static_cast<void*>(row),
                                               extent.count(), extent.type(), group);
}

void gather(const Request& request, MPI_Comm group, Requests& requests) {
  const auto& input = request.inputs.front();
  if (input.bytes == 0) return;
  const bool here = !request.outputs.empty();
  auto* const row = here ? row_for(request.outputs, input, requests) : nullptr;
  const Extent extent(input.bytes);
  requests.call<MPI_Gather, MPI_Igather>("MPI_Gather", static_cast<const void*>(input.data), extent.count(),
                                         extent.type(), static_cast<void*>(row), extent.count(),
                                         extent.type(), request.root, group);
}

void scatter(const Request& request, MPI_Comm group, Requests& requests) {
  const auto& output = request.outputs.front();
  if (output.bytes == 0) return;
  const bool here = !request.inputs.empty();
  const auto* const row = here ? row_of(request.inputs, output, requests) : nullptr;
  const Extent extent(output.bytes);
  requests.call<MPI_Scatter, MPI_Iscatter>("MPI_Scatter", static_cast<const void*>(row), extent.count(),
                                           extent.type(), static_cast<void*>(output.data), extent.count(),
                                           extent.type(), request.root, group);
}

}  // namespace

void post(const Request& request, MPI_Comm group, int tag, Requests& requests) {
  switch (request.kind) {
    case shm::Kind::all_reduce:
      return all_reduce(request, group, requests);
    case shm::Kind::broadcast:
      return broadcast(request, group, requests);
    case shm::Kind::reduce:
      return reduce(request, group, requests);
    case shm::Kind::all_gather:
      return all_gather(request, group, tag, requests);
    case shm::Kind::gather:
      return gather(request, group, requests);
    case shm::Kind::scatter:
      return scatter(request, group, requests);
    case shm::Kind::reduce_scatter:
      return reduce_scatter(request, group, requests);
    case shm::Kind::all_to_all:
      return exchange(request, group, tag, requests);
    case shm::Kind::barrier:
      return requests.call<MPI_Barrier, MPI_Ibarrier>("MPI_Barrier", group);
  }
}

}  // namespace lockstep::mpi
