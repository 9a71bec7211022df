// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>

#include "serialize/unpickler.h"

namespace lockstep::serialize {
namespace {

// Quantized storages are known so that the error can name them.
constexpr auto kNames = [] {
  std::array names = std::to_array<std::string_view>({"_codecs encode",
                                                      "builtins bytearray",
                                                      "builtins bytes",
                                                      "builtins complex",
                                                      "builtins set",
                                                      "collections Counter",
                                                      "collections OrderedDict",
                                                      "numpy dtype",
                                                      "numpy._core.multiarray scalar",
                                                      "numpy.core.multiarray scalar",
                                                      "torch BFloat16Storage",
                                                      "torch BoolStorage",
                                                      "torch ByteStorage",
                                                      "torch CharStorage",
                                                      "torch ComplexDoubleStorage",
                                                      "torch ComplexFloatStorage",
                                                      "torch DoubleStorage",
                                                      "torch FloatStorage",
                                                      "torch HalfStorage",
                                                      "torch IntStorage",
                                                      "torch LongStorage",
                                                      "torch QInt32Storage",
                                                      "torch QInt8Storage",
                                                      "torch QUInt2x4Storage",
                                                      "torch QUInt4x2Storage",
                                                      "torch QUInt8Storage",
                                                      "torch ShortStorage",
                                                      "torch Size",
                                                      "torch Tensor",
                                                      "torch._tensor _rebuild_from_type_v2",
                                                      "torch._utils _rebuild_device_tensor_from_cpu_tensor",
                                                      "torch._utils _rebuild_meta_tensor_no_storage",
                                                      "torch._utils _rebuild_nested_tensor",
                                                      "torch._utils _rebuild_parameter",
                                                      "torch._utils _rebuild_parameter_with_state",
                                                      "torch._utils _rebuild_qtensor",
                                                      "torch._utils _rebuild_sparse_tensor",
                                                      "torch._utils _rebuild_tensor",
                                                      "torch._utils _rebuild_tensor_v2",
                                                      "torch._utils _rebuild_tensor_v3",
                                                      "torch bfloat16",
                                                      "torch bool",
                                                      "torch complex128",
                                                      "torch complex32",
                                                      "torch complex64",
                                                      "torch device",
                                                      "torch float16",
                                                      "torch float32",
                                                      "torch float4_e2m1fn_x2",
                                                      "torch float64",
                                                      "torch float8_e4m3fn",
                                                      "torch float8_e4m3fnuz",
                                                      "torch float8_e5m2",
                                                      "torch float8_e5m2fnuz",
                                                      "torch float8_e8m0fnu",
                                                      "torch int16",
                                                      "torch int32",
                                                      "torch int64",
                                                      "torch int8",
                                                      "torch per_channel_affine",
                                                      "torch per_channel_affine_float_qparams",
                                                      "torch per_tensor_affine",
                                                      "torch uint16",
                                                      "torch uint32",
                                                      "torch uint64",
                                                      "torch uint8",
                                                      "torch.nn.parameter Parameter",
                                                      "torch.serialization _get_layout",
                                                      "torch.storage UntypedStorage"});
  std::ranges::sort(names);
  return names;
}();

constexpr auto kDistributedNames = [] {
  constexpr std::array more = std::to_array<std::string_view>(
      {"pathlib PosixPath", "torch.distributed.checkpoint.filesystem _StorageInfo",
       "torch.distributed.checkpoint.filesystem _StoragePrefix",
       "torch.distributed.checkpoint.metadata BytesStorageMetadata",
       "torch.distributed.checkpoint.metadata ChunkStorageMetadata",
       "torch.distributed.checkpoint.metadata Metadata",
       "torch.distributed.checkpoint.metadata MetadataIndex",
       "torch.distributed.checkpoint.metadata StorageMeta",
       "torch.distributed.checkpoint.metadata TensorProperties",
       "torch.distributed.checkpoint.metadata TensorStorageMetadata",
       "torch.distributed.checkpoint.metadata _MEM_FORMAT_ENCODING"});
  std::array<std::string_view, kNames.size() + more.size()> names{};
  std::ranges::copy(kNames, names.begin());
  std::ranges::copy(more, names.begin() + kNames.size());
  std::ranges::sort(names);
  return names;
}();

}  // namespace

pickle::AllowedNames names_in_checkpoints() { return kNames; }

pickle::AllowedNames names_in_distributed_checkpoints() { return kDistributedNames; }

}  // namespace lockstep::serialize
