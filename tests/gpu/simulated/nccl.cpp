// SPDX-License-Identifier: BSD-3-Clause
// libnccl.so.2: the calls that c10d makes, between processes of one host, on streams of simulated GPUs. Every
// rank reads the others' buffers and reduces in the order of ranks.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <nccl.h>
#include <random>
#include <set>
#include <thread>
#include <unistd.h>
#include <vector>

#include "board.h"
#include "reduction.h"
#include "simulated.h"

using lockstep::simulated::Board;
using lockstep::simulated::Bytes;
using lockstep::simulated::reduce_all;
using lockstep::simulated::Reduction;
using lockstep::simulated::size_of;
using lockstep::simulated::with_type;

struct ncclComm {
  std::string name;
  std::atomic<ncclResult_t> state = ncclSuccess;  // ncclInProgress while it connects
  std::shared_ptr<Board> board;  // a use of it by each call that has not run, and by each that a graph holds
  int device = 0;
  int splits = 0;
  std::mutex mutex;
  std::set<void*> registered;
  std::map<int, double> factors;  // of reductions made by ncclRedOpCreatePreMulSum
  std::jthread connecting;        // last: joined first
};

namespace {

struct Call {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  // A message or a collective.
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
    if (call.to >= 0) board.post(call.to, call.bytes, call.buffer);
  }
  for (const auto& call : calls) {
    if (call.from >= 0) board.take(call.from, call.buffer, call.bytes);
    if (call.collective) call.collective(board);
  }
  for (const auto& call : calls) {
    if (call.to >= 0) board.wait_until_taken(call.to);
  }
}

// NCCL makes its communicator's device the current one.
cudaError_t launch_on(int device, cudaStream_t stream, const std::function<void()>& work) {
  int before = 0;
  cudaGetDevice(&before);
  cudaSetDevice(device);
  const auto result = lockstep_simulated_launch(stream, work);
  cudaSetDevice(before);
  return result;
}

ncclResult_t submit(std::vector<Call> calls) {
  // Communicators in the order of their first calls, which is the same on all ranks.
  while (!calls.empty()) {
    const auto comm = calls.front().comm;
    const auto stream = calls.front().stream;
    const auto others = std::stable_partition(calls.begin(), calls.end(), [&](const Call& call) {
      return call.comm == comm && call.stream == stream;
    });
    std::vector<Call> part(calls.begin(), others);
    calls.erase(calls.begin(), others);
    const auto result = launch_on(comm->device, stream, [board = comm->board, part] { run(*board, part); });
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

// The same on all ranks that make the same call.
template <typename... Numbers>
std::uint64_t kind_of(const char* function, Numbers... numbers) {
  std::uint64_t kind = std::hash<std::string>()(function);
  ((kind = kind * 31 + static_cast<std::uint64_t>(numbers)), ...);
  return kind;
}

// All ranks publish `send`; `act` reads them, and what it gives is written to `to` when nobody reads any
// more.
ncclResult_t collective(ncclComm_t comm, cudaStream_t stream, std::uint64_t what, const void* send, void* to,
                        std::function<Bytes(Board&)> act) {
  const auto run = [what, send = bytes_of(send), to = bytes_of(to), act = std::move(act)](Board& board) {
    Bytes result;
    if (board.exchange(what, send, [&] { result = act(board); }))
      std::memcpy(to, result.data(), result.size());
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

ncclResult_t connect(ncclComm& comm, int rank, int size) {
  try {
    comm.board = std::make_shared<Board>(comm.name, rank, size);
    return ncclSuccess;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "simulated GPU: no communicator: %s\n", error.what());
    return ncclSystemError;
  }
}

ncclResult_t make(ncclComm_t* comm, std::string name, int rank, int size, const ncclConfig_t* config) {
  auto made = std::make_unique<ncclComm>();
  made->name = std::move(name);
  cudaGetDevice(&made->device);
  *comm = made.get();
  if (config != nullptr && config->blocking == 0) {
    made->state = ncclInProgress;
    made->connecting = std::jthread([&made = *made, rank, size] { made.state = connect(made, rank, size); });
  } else {
    made->state = connect(*made, rank, size);
  }
  return made.release()->state;
}

// As NCCL does, which waits for graphs too.
void wait_until_unused(const ncclComm& comm) {
  while (comm.board.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
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
  return make(comm, id.internal, rank, size, nullptr);
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return make(comm, id.internal, rank, size, config);
}
ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int size, int rank, int, ncclUniqueId* ids,
                                      ncclConfig_t* config) {
  return make(comm, ids->internal, rank, size, config);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t* config) {
  auto& board = *comm->board;
  std::vector<std::array<int, 3>> all;  // color, key, rank
  const std::array<int, 2> own{color, key};
  board.exchange(kind_of(__func__), own.data(), [&] {
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
              static_cast<int>(at - all.begin()), static_cast<int>(all.size()), config);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  wait_until_unused(*comm);
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  wait_until_unused(*comm);
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;  // as in NCCL; c10d passes null
  if (comm->connecting.joinable()) comm->connecting.join();
  if (comm->board) comm->board->abort();
  wait_until_unused(*comm);
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = comm->state;
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
  return collective(comm, stream, kind_of(__func__, count, type, op), send, to,
                    [=, reduction = reduction_of(comm, op)](Board& board) {
                      return reduce_all(board, count, type, reduction);
                    });
}

ncclResult_t ncclReduce(const void* send, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, kind_of(__func__, count, type, op, root), send, to,
                    [=, reduction = reduction_of(comm, op)](Board& board) {
                      return board.rank() == root ? reduce_all(board, count, type, reduction) : Bytes{};
                    });
}

ncclResult_t ncclBroadcast(const void* send, void* to, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, kind_of(__func__, count, type, root), send, to, [=](Board& board) {
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
  return collective(comm, stream, kind_of(__func__, count, type), send, to, [=](Board& board) {
    const auto bytes = count * size_of(type);
    Bytes result(bytes * static_cast<std::size_t>(board.size()));
    for (int rank = 0; rank < board.size(); ++rank)
      board.read(rank, result.data() + bytes * static_cast<std::size_t>(rank), bytes);
    return result;
  });
}

ncclResult_t ncclReduceScatter(const void* send, void* to, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, kind_of(__func__, count, type, op), send, to,
                    [=, reduction = reduction_of(comm, op)](Board& board) {
                      return reduce_all(board, count, type, reduction,
                                        static_cast<std::size_t>(board.rank()) * count * size_of(type));
                    });
}

ncclResult_t ncclAlltoAll(const void* send, void* to, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  return collective(comm, stream, kind_of(__func__, count, type), send, to, [=](Board& board) {
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
// The address is the handle.
ncclResult_t ncclCommRegister(ncclComm_t comm, void* address, std::size_t, void** handle) {
  const std::lock_guard lock(comm->mutex);
  *handle = address;
  return comm->registered.insert(address).second ? ncclSuccess : ncclInvalidUsage;
}
ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  const std::lock_guard lock(comm->mutex);
  return comm->registered.erase(handle) == 1 ? ncclSuccess : ncclInvalidUsage;
}
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
