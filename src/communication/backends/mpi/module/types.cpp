// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/module/types.h"

#include <array>
#include <limits>
#include <utility>

#include "backends/mpi/module/lost_ranks.h"
#include "backends/shm/kernels.h"

namespace lockstep::mpi {
namespace {

using shm::Element;
using shm::Reduction;

constexpr std::size_t kElements = static_cast<std::size_t>(Element::boolean) + 1;
constexpr std::size_t kReductions = static_cast<std::size_t>(Reduction::bxor) + 1;

MPI_Datatype own_type(int bytes) {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  check(MPI_Type_contiguous(bytes, MPI_BYTE, &type), "MPI_Type_contiguous");
  check(MPI_Type_commit(&type), "MPI_Type_commit");
  return type;
}

template <std::size_t E, std::size_t R>
void combine(void* in, void* inout, int* count, MPI_Datatype*) {
  static const auto kernel = shm::reduce_kernel(static_cast<Element>(E), static_cast<Reduction>(R));
  const std::array<const void*, 2> ins{in, inout};
  kernel(&inout, 1, ins.data(), 2, static_cast<std::size_t>(*count));
}

template <std::size_t... I>
constexpr auto combiners(std::index_sequence<I...>) {
  return std::array<MPI_User_function*, sizeof...(I)>{combine<I / kReductions, I % kReductions>...};
}

MPI_Op own_operator(Element element, Reduction reduction) {
  static constexpr auto functions = combiners(std::make_index_sequence<kElements * kReductions>());
  const auto index = static_cast<std::size_t>(element) * kReductions + static_cast<std::size_t>(reduction);
  MPI_Op op = MPI_OP_NULL;
  check(MPI_Op_create(functions.at(index), 1, &op), "MPI_Op_create");
  return op;
}

bool is_ours(Element element, Reduction reduction) {
  const bool is_float = element == Element::f32 || element == Element::f64;
  const bool orders = reduction == Reduction::min || reduction == Reduction::max;
  return size_of(element) <= 2 || (is_float && orders);
}

MPI_Op operator_of_mpi(Reduction reduction) {
  const std::array ops{MPI_SUM, MPI_OP_NULL, MPI_PROD, MPI_MIN, MPI_MAX, MPI_BAND, MPI_BOR, MPI_BXOR};
  return ops.at(static_cast<std::size_t>(reduction));
}

// Every operator of ours that has a kernel. MPI keeps them until it is finalized.
std::array<MPI_Op, kElements * kReductions> all_operators() {
  std::array<MPI_Op, kElements * kReductions> ops{};
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const auto element = static_cast<Element>(i / kReductions);
    const auto reduction = static_cast<Reduction>(i % kReductions);
    const bool has_kernel = shm::reduce_kernel(element, reduction) != nullptr;
    const bool own = is_ours(element, reduction) && has_kernel && reduction != Reduction::average;
    ops.at(i) = own ? own_operator(element, reduction) : operator_of_mpi(reduction);
  }
  return ops;
}

}  // namespace

MPI_Datatype type_of(Element element) {
  static const MPI_Datatype half = own_type(2);  // until MPI is finalized
  static const std::array types{MPI_FLOAT,    MPI_DOUBLE,   half,        half,        MPI_INT8_T,
                                MPI_UINT8_T,  MPI_INT16_T,  MPI_INT32_T, MPI_INT64_T, MPI_UINT16_T,
                                MPI_UINT32_T, MPI_UINT64_T, MPI_UINT8_T};
  static_assert(std::tuple_size_v<decltype(types)> == kElements);
  return types.at(static_cast<std::size_t>(element));
}

MPI_Op operator_of(Element element, Reduction reduction) {
  static const auto ops = all_operators();
  return ops.at(static_cast<std::size_t>(element) * kReductions + static_cast<std::size_t>(reduction));
}

Extent::Extent(std::size_t bytes) {
  if (bytes <= static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    count_ = static_cast<int>(bytes);
    return;
  }
  constexpr std::size_t kBlock = std::size_t{1} << 30U;
  const auto blocks = bytes / kBlock;
  MPI_Datatype block = MPI_DATATYPE_NULL;
  check(MPI_Type_contiguous(static_cast<int>(kBlock), MPI_BYTE, &block), "MPI_Type_contiguous");
  const std::array lengths{static_cast<int>(blocks), static_cast<int>(bytes % kBlock)};
  const std::array<MPI_Aint, 2> places{0, static_cast<MPI_Aint>(blocks * kBlock)};
  const std::array types{block, MPI_BYTE};
  check(MPI_Type_create_struct(2, lengths.data(), places.data(), types.data(), &type_),
        "MPI_Type_create_struct");
  MPI_Type_free(&block);
  check(MPI_Type_commit(&type_), "MPI_Type_commit");
  count_ = 1;
}

Extent::~Extent() {
  if (type_ != MPI_BYTE) MPI_Type_free(&type_);
}

}  // namespace lockstep::mpi
