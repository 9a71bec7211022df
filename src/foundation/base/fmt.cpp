// SPDX-License-Identifier: BSD-3-Clause
// Compiles fmt, as src/format.cc of its sources does, which packages of fmt leave out. The packages' own libfmt will not do:
// it is a shared library, which users of an installed Lockstep would need in the same version.
#include <fmt/format.h>

#ifndef FMT_HEADER_ONLY
// Weak: a program may link a copy of its own besides.
#undef FMT_FUNC
#define FMT_FUNC __attribute__((weak))
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

template FMT_API auto dragonbox::to_decimal(float x) noexcept -> dragonbox::decimal_fp<float>;
template FMT_API auto dragonbox::to_decimal(double x) noexcept -> dragonbox::decimal_fp<double>;
template FMT_API auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl(locale_ref) -> char;
template FMT_API void buffer<char>::append(const char*, const char*);
#if FMT_VERSION < 110000
template FMT_API void vformat_to(buffer<char>&, string_view, format_args, locale_ref);
#endif

}  // namespace detail
FMT_END_NAMESPACE
#endif
