// SPDX-License-Identifier: BSD-3-Clause
// libnccl.so.2: the calls that c10d makes, between processes of one host, on streams of simulated GPUs. Every
// rank reads the others' buffers and reduces in the order of ranks.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <nccl.h>
#include <random>
#include <unistd.h>
#include <vector>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "board.h"
#include "simulated.h"

using lockstep::simulated::Board;

struct ncclComm {
  std::string name;
  std::shared_ptr<Board> board;
  int splits = 0;
  std::mutex mutex;
  std::map<int, double> factors;  // of reductions made by ncclRedOpCreatePreMulSum
};

namespace {

using Bytes = std::vector<char>;

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

struct Reduction {
  ncclRedOp_t op = ncclSum;
  double factor = 1;
};

template <typename T>
T reduce_two(T a, T b, ncclRedOp_t op) {
  switch (op) {
    case ncclProd:
      return static_cast<T>(a * b);
    case ncclMax:
      return a < b ? b : a;
    case ncclMin:
      return b < a ? b : a;
    default:
      return static_cast<T>(a + b);
  }
}

template <typename T>
void reduce_as(char* into, const char* from, std::size_t count, const Reduction& reduction) {
  for (std::size_t i = 0; i < count; ++i) {
    T a, b;
    std::memcpy(&a, into + i * sizeof(T), sizeof(T));
    std::memcpy(&b, from + i * sizeof(T), sizeof(T));
    a = reduce_two<T>(a, b, reduction.op);
    std::memcpy(into + i * sizeof(T), &a, sizeof(T));
  }
}

template <typename T>
void scale_as(char* values, std::size_t count, double factor) {
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, values + i * sizeof(T), sizeof(T));
    value = static_cast<T>(static_cast<float>(factor) * static_cast<float>(value));
    if constexpr (std::is_same_v<T, double>) {
      std::memcpy(&value, values + i * sizeof(T), sizeof(T));
      value *= factor;
    }
    std::memcpy(values + i * sizeof(T), &value, sizeof(T));
  }
}

template <typename Act>
void with_type(ncclDataType_t type, const Act& act) {
  switch (type) {
    case ncclInt8:
      return act(std::int8_t{});
    case ncclUint8:
      return act(std::uint8_t{});
    case ncclInt32:
      return act(std::int32_t{});
    case ncclUint32:
      return act(std::uint32_t{});
    case ncclInt64:
      return act(std::int64_t{});
    case ncclUint64:
      return act(std::uint64_t{});
    case ncclFloat16:
      return act(c10::Half{});
    case ncclBfloat16:
      return act(c10::BFloat16{});
    case ncclFloat32:
      return act(float{});
    case ncclFloat64:
      return act(double{});
    default:
      std::fprintf(stderr, "simulated GPU: a type of NCCL is not simulated\n");
  }
}

// `count` values from `offset` bytes on of every rank, reduced.
Bytes reduce_all(const Board& board, std::size_t count, ncclDataType_t type, const Reduction& reduction,
                 std::size_t offset = 0) {
  const auto bytes = count * size_of(type);
  Bytes result(bytes), other(bytes);
  for (int rank = 0; rank < board.size(); ++rank) {
    auto& into = rank == 0 ? result : other;
    board.read(rank, into.data(), bytes, offset);
    with_type(type, [&](auto value) {
      using T = decltype(value);
      if (reduction.factor != 1) scale_as<T>(into.data(), count, reduction.factor);
      if (rank > 0) reduce_as<T>(result.data(), other.data(), count, reduction);
    });
  }
  if (reduction.op == ncclAvg) {
    with_type(type, [&](auto value) { scale_as<decltype(value)>(result.data(), count, 1.0 / board.size()); });
  }
  return result;
}

struct Call {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  // A message, or else a collective.
  int to = -1, from = -1;
  void* buffer = nullptr;
  std::size_t bytes = 0;
  std::function<void(Board&)> collective;
};

struct Group {
  int depth = 0;
  std::vector<Call> calls;
};

Group& group() {
  thread_local Group calls;
  return calls;
}

void run(Board& board, const std::vector<Call>& calls) {
  for (const auto& call : calls) {
    if (call.to >= 0) board.post(call.to, call.buffer);
  }
  for (const auto& call : calls) {
    if (call.from >= 0) board.take(call.from, call.buffer, call.bytes);
    if (call.collective) call.collective(board);
  }
  for (const auto& call : calls) {
    if (call.to >= 0) board.wait_until_taken(call.to);
  }
}

ncclResult_t submit(std::vector<Call> calls) {
  std::map<std::pair<ncclComm_t, cudaStream_t>, std::vector<Call>> parts;
  for (auto& call : calls) parts[{call.comm, call.stream}].push_back(std::move(call));
  for (auto& [where, part] : parts) {
    const auto result = lockstep_simulated_launch(
        where.second, [board = where.first->board, part = std::move(part)] { run(*board, part); });
    if (result != cudaSuccess) return ncclUnhandledCudaError;
  }
  return ncclSuccess;
}

ncclResult_t enqueue(Call call) {
  if (call.comm->board->aborted()) return ncclInvalidUsage;
  if (group().depth == 0) return submit({std::move(call)});
  group().calls.push_back(std::move(call));
  return ncclSuccess;
}

void* bytes_of(const void* address) { return lockstep_simulated_bytes(address); }

// All ranks show `send`; `act` reads them, and what it gives is written to `to` when nobody reads any more.
ncclResult_t collective(ncclComm_t comm, cudaStream_t stream, const void* send, void* to,
                        std::function<Bytes(Board&)> act) {
  const auto run = [send = bytes_of(send), to = bytes_of(to), act = std::move(act)](Board& board) {
    Bytes result;
    if (board.together(send, [&] { result = act(board); })) std::memcpy(to, result.data(), result.size());
  };
  Call call;
  call.comm = comm;
  call.stream = stream;
  call.collective = run;
  return enqueue(std::move(call));
}

Reduction reduction_of(ncclComm_t comm, ncclRedOp_t op) {
  if (op < ncclNumOps) return {op, 1};
  const std::lock_guard lock(comm->mutex);
  return {ncclSum, comm->factors.at(op)};
}

ncclResult_t make(ncclComm_t* comm, std::string name, int rank, int size) {
  try {
    auto made = std::make_unique<ncclComm>();
    made->board = std::make_shared<Board>(name, rank, size);
    made->name = std::move(name);
    *comm = made.release();
    return ncclSuccess;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "simulated GPU: no communicator: %s\n", error.what());
    return ncclSystemError;
  }
}

ncclResult_t not_simulated(const char* function) {
  std::fprintf(stderr, "simulated GPU: %s is not simulated\n", function);
  return ncclInvalidUsage;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess ? "no error" : "unhandled system error";
}
const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 0, sizeof *id);
  std::random_device random;
  std::snprintf(id->internal, sizeof id->internal, "/lockstep-simulated-nccl-%d-%08x%08x", ::getpid(),
                random(), random());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  return make(comm, id.internal, rank, size);
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
  return make(comm, id.internal, rank, size);
}
ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int size, int rank, int, ncclUniqueId* ids,
                                      ncclConfig_t*) {
  return make(comm, ids->internal, rank, size);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t*) {
  auto& board = *comm->board;
  std::vector<std::array<int, 3>> all;  // color, key, rank
  const std::array<int, 2> own{color, key};
  board.together(own.data(), [&] {
    for (int rank = 0; rank < board.size(); ++rank) {
      std::array<int, 2> theirs{};
      board.read(rank, theirs.data(), sizeof theirs);
      if (theirs[0] == color) all.push_back({theirs[0], theirs[1], rank});
    }
  });
  *made = nullptr;
  const auto number = comm->splits++;
  if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
  std::ranges::sort(all);
  const auto at = std::ranges::find_if(all, [&](const auto& one) { return one[2] == board.rank(); });
  return make(made, comm->name + "-" + std::to_string(number) + "-" + std::to_string(color),
              static_cast<int>(at - all.begin()), static_cast<int>(all.size()));
}

ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;  // as NCCL has it: c10d does so
  comm->board->abort();
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  *count = comm->board->size();
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  *rank = comm->board->rank();
  return ncclSuccess;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t, ncclComm_t comm) {
  double factor = 0;
  with_type(type, [&](auto value) {
    std::memcpy(&value, bytes_of(scalar), sizeof value);
    factor = static_cast<double>(value);
  });
  const std::lock_guard lock(comm->mutex);
  const int number = static_cast<int>(ncclNumOps) + static_cast<int>(comm->factors.size());
  comm->factors[number] = factor;
  *op = static_cast<ncclRedOp_t>(number);
  return ncclSuccess;
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return ncclSuccess; }

ncclResult_t ncclAllReduce(const void* send, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, send, to, [=, reduction = reduction_of(comm, op)](Board& board) {
    return reduce_all(board, count, type, reduction);
  });
}

ncclResult_t ncclReduce(const void* send, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, send, to, [=, reduction = reduction_of(comm, op)](Board& board) {
    return board.rank() == root ? reduce_all(board, count, type, reduction) : Bytes{};
  });
}

ncclResult_t ncclBroadcast(const void* send, void* to, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, send, to, [=](Board& board) {
    Bytes result(count * size_of(type));
    board.read(root, result.data(), result.size());
    return result;
  });
}

ncclResult_t ncclBcast(void* buffer, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

ncclResult_t ncclAllGather(const void* send, void* to, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, send, to, [=](Board& board) {
    const auto bytes = count * size_of(type);
    Bytes result(bytes * static_cast<std::size_t>(board.size()));
    for (int rank = 0; rank < board.size(); ++rank)
      board.read(rank, result.data() + bytes * static_cast<std::size_t>(rank), bytes);
    return result;
  });
}

ncclResult_t ncclReduceScatter(const void* send, void* to, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, send, to, [=, reduction = reduction_of(comm, op)](Board& board) {
    return reduce_all(board, count, type, reduction,
                      static_cast<std::size_t>(board.rank()) * count * size_of(type));
  });
}

ncclResult_t ncclAlltoAll(const void* send, void* to, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  return collective(comm, stream, send, to, [=](Board& board) {
    const auto bytes = count * size_of(type);
    Bytes result(bytes * static_cast<std::size_t>(board.size()));
    for (int rank = 0; rank < board.size(); ++rank) {
      board.read(rank, result.data() + bytes * static_cast<std::size_t>(rank), bytes,
                 bytes * static_cast<std::size_t>(board.rank()));
    }
    return result;
  });
}

ncclResult_t ncclSend(const void* buffer, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  Call call{comm, stream, peer, -1, bytes_of(buffer), count * size_of(type), {}};
  return enqueue(std::move(call));
}

ncclResult_t ncclRecv(void* buffer, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  Call call{comm, stream, -1, peer, bytes_of(buffer), count * size_of(type), {}};
  return enqueue(std::move(call));
}

ncclResult_t ncclGroupStart() {
  ++group().depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--group().depth > 0) return ncclSuccess;
  return submit(std::exchange(group().calls, {}));
}

ncclResult_t ncclMemAlloc(void** address, std::size_t size) {
  return cudaMalloc(address, size) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclMemFree(void* address) {
  return cudaFree(address) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommInitAll(ncclComm_t*, int, const int*) { return not_simulated(__func__); }
ncclResult_t ncclCommRegister(ncclComm_t, void*, std::size_t, void**) { return not_simulated(__func__); }
ncclResult_t ncclCommDeregister(ncclComm_t, void*) { return not_simulated(__func__); }
ncclResult_t ncclCommWindowRegister(ncclComm_t, void*, std::size_t, ncclWindow_t*, int) {
  return not_simulated(__func__);
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) { return not_simulated(__func__); }
ncclResult_t ncclCommShrink(ncclComm_t, int*, int, ncclComm_t*, ncclConfig_t*, int) {
  return not_simulated(__func__);
}
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t*) { return not_simulated(__func__); }
ncclResult_t ncclDevCommCreate() { return not_simulated(__func__); }
ncclResult_t ncclDevCommDestroy() { return not_simulated(__func__); }
}
