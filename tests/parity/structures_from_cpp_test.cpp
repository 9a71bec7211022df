// SPDX-License-Identifier: BSD-3-Clause
// Structures that begin in C++: saved here, and compared in live Python with the same built there.
#include <algorithm>
#include <complex>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <lockstep/serialize/torch_file.h>

#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using Structures = std::vector<std::pair<std::string, Value>>;

constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

at::Tensor floats(std::int64_t count) { return at::arange(count, at::kFloat); }

// Bytes 1, 2, 3, ..., seen as that dtype; 0 and 1 where it has no others.
at::Tensor of_dtype(at::ScalarType dtype) {
  auto bytes = at::arange(1, 12 * static_cast<std::int64_t>(c10::elementSize(dtype)) + 1, at::kByte);
  if (dtype == at::kBool) bytes = bytes.remainder(2);
  return bytes.view(dtype).reshape({3, 4});
}

Structures plain_values() {
  return {
      {"none", None{}},
      {"bools", List{true, false}},
      {"ints", List{0, 1, -1, 255, 256, 65535, 65536, -129, 2147483648, -2147483649, kMost, kLeast}},
      {"big_ints", List{std::numeric_limits<std::uint64_t>::max(), std::uint64_t{1} << 63,
                        BigInteger{std::string("\xff\xff\xff\xff\xff\xff\xff\x7f\xff", 9)},
                        BigInteger{std::string(20, '\0') + '\1'}}},
      {"floats", List{0.0, -0.0, 1.5, 0.1, 1e300, 5e-324, kInfinity, -kInfinity, kNaN}},
      {"complex", List{std::complex<double>(1, 2), std::complex<double>(-0.0, kInfinity)}},
      {"strings", List{"", "plain", "ünïcödé", "日本語", "🙂", std::string("a\nb\0c", 5),
                       std::string(300, 'x'), "'\"\\"}},
      {"bytes", List{Bytes{std::string("\0\x80\xff", 3)}, Bytes{"", false}}},
      {"bytearray", Bytes{"changing", true}},
      {"sizes", List{Size{{2, 3, 4}}, Size{}}},
      {"dtypes",
       List{at::kFloat, at::kDouble, at::kBFloat16, at::kBool, at::kFloat8_e4m3fn, at::kComplexHalf}},
      {"devices", List{at::Device("cpu"), at::Device("cuda:1"), at::Device("meta")}},
      {"layouts", List{at::kStrided, at::kSparse, at::kSparseCsr}},
  };
}

Value deep(int levels) {
  Value value = 1;
  for (int i = 0; i < levels; ++i) value = List(std::vector<Value>{value});
  return value;
}

Value long_list() {
  List list;
  for (std::int64_t i = 0; i < 3000; ++i) list.items.emplace_back(i * i);
  return list;
}

Dict state_dict_of_two_layers() {
  auto dict = ordered_dict({{"0.weight", floats(6).view({2, 3})},
                            {"0.bias", floats(2)},
                            {"1.num_batches_tracked", at::scalar_tensor(7, at::kLong)}});
  dict.set_attributes(
      {{"_metadata", ordered_dict({{"", Dict{{"version", 1}}}, {"1", Dict{{"version", 2}}}})}});
  return dict;
}

Structures containers() {
  return {
      {"empty", List{List(), Tuple(), Dict(), Set(), ordered_dict()}},
      {"tuples", Tuple{Tuple(std::vector<Value>{1}), Tuple{1, 2}, Tuple{1, "two", 3.0}, Tuple{1, 2, 3, 4}}},
      {"set", Set{1, "a", Tuple{2, 3}}},
      {"nested_dict",
       Dict{{"a", 1}, {"b", Dict{{"c", List{1, None{}}}, {"d", Dict{{"e", Tuple{true, 2.5}}}}}}}},
      {"dict_keys", Dict{{1, "int"},
                         {"1", "str"},
                         {2.5, "float"},
                         {Tuple{1, "x"}, "tuple"},
                         {None{}, "none"},
                         {Bytes{"k"}, 1}}},
      {"ordered_dict", ordered_dict({{"z", 1}, {"a", 2}, {"m", ordered_dict({{"q", 1}})}})},
      {"counter", Dict({{"a", 5}, {"b", 2}}, DictKind::counter)},
      {"deep", deep(200)},
      {"long_list", long_list()},
      {"state_dict", state_dict_of_two_layers()},
      {"run", Dict{{"epoch", 3},
                   {"arch", "two layers"},
                   {"state_dict", state_dict_of_two_layers()},
                   {"best_acc", 0.75},
                   {"optimizer",
                    Dict{{"state", Dict{{0, Dict{{"momentum_buffer", floats(3)}}}, {1, Dict{{"step", 4}}}}},
                         {"param_groups",
                          List{Dict{{"lr", 0.1}, {"betas", Tuple{0.9, 0.999}}, {"params", List{0, 1}}},
                               Dict{{"lr", 0.01}, {"nesterov", false}, {"params", List()}}}}}}}},
  };
}

Dict shared() {
  const auto base = floats(24);
  const auto rows = base.view({4, 6});
  return {{"base", base},
          {"rows", rows},
          {"column", rows.select(1, 2)},
          {"same", base},
          {"tail", base.narrow(0, 20, 4)},
          {"other", floats(24)}};
}

Structures tensors() {
  const auto complex = at::complex(floats(4), floats(4) + 1);
  const auto block = floats(120).reshape({2, 3, 4, 5});
  const auto sparse = at::sparse_coo_tensor(at::tensor({0, 2, 2, 1, 0, 2}, at::kLong).view({2, 3}),
                                            at::tensor({1.0F, 2.0F, 3.0F}), {3, 4});
  const auto tied = at::zeros({4});
  const auto fours = at::zeros({4}, at::kInt);
  return {
      {"shared", shared()},
      {"shared_apart", List{Dict{{"weight", fours}}, Tuple{fours, fours.narrow(0, 1, 2)}}},
      {"transposed", floats(12).view({3, 4}).t()},
      {"sliced", floats(100).slice(0, 10, 90, 7)},
      {"expanded", floats(3).expand({4, 3})},
      {"channels_last", block.contiguous(at::MemoryFormat::ChannelsLast)},
      {"permuted", block.permute({3, 1, 0, 2}).select(1, 1)},
      {"empty_tensors", List{at::empty({0}), at::empty({3, 0, 2}), at::empty({0}, at::kChar)}},
      {"no_dimensions",
       List{at::scalar_tensor(3.5), at::scalar_tensor(true, at::kBool), floats(5).select(0, 3)}},
      {"many_dimensions", floats(128).view({2, 2, 2, 2, 2, 2, 2})},
      {"special_numbers", at::tensor({kInfinity, -kInfinity, -0.0, 5e-324, kNaN}, at::kDouble)},
      {"requires_grad", at::ones({3}).requires_grad_()},
      {"parameters", List{Parameter{floats(6).view({2, 3})}, Parameter{at::arange(3), false}}},
      {"tied_parameters", Dict{{"a", Parameter{tied}}, {"b", Parameter{tied}}}},
      {"conjugated", complex.conj()},
      {"negated", at::imag(complex.conj())},
      {"sparse", sparse},
      {"coalesced", sparse.coalesce()},
      {"sparse_csr", floats(12).view({3, 4}).to_sparse_csr()},
      {"meta", at::empty({3, 4}, at::device(at::kMeta).dtype(at::kHalf))},
  };
}

Structures every_dtype() {
  Structures made;
  for (const auto dtype : {at::kDouble,
                           at::kFloat,
                           at::kHalf,
                           at::kBFloat16,
                           at::kLong,
                           at::kInt,
                           at::kShort,
                           at::kChar,
                           at::kByte,
                           at::kBool,
                           at::kComplexDouble,
                           at::kComplexFloat,
                           at::kComplexHalf,
                           at::kUInt16,
                           at::kUInt32,
                           at::kUInt64,
                           at::kFloat8_e5m2,
                           at::kFloat8_e4m3fn,
                           at::kFloat8_e5m2fnuz,
                           at::kFloat8_e4m3fnuz,
                           at::kFloat8_e8m0fnu}) {
    made.emplace_back(std::string("dtype_") + c10::toString(dtype), of_dtype(dtype));
  }
  return made;
}

TEST(StructuresFromCpp, EqualThoseThatPythonBuilds) {
  const TempFolder folder;
  std::vector<std::string> names;
  for (const auto& group : {plain_values(), containers(), tensors(), every_dtype()}) {
    for (const auto& [name, value] : group) {
      SCOPED_TRACE(name);
      EXPECT_NO_THROW(save(value, folder.file(name + ".pt"), {.sync = false}));
      names.push_back(name);
    }
  }
  EXPECT_GE(names.size(), 60U);
  std::ranges::sort(names);
  std::string expected;
  for (const auto& name : names) expected += name + "\n";
  EXPECT_EQ(run_python("parity/structures_from_cpp.py", {.args = {folder.path().string()}}), expected);
}

}  // namespace
}  // namespace lockstep::testing
