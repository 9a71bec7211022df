# SPDX-License-Identifier: BSD-3-Clause
"""Writes the program of a Markdown page, its cpp blocks up to the one with main(): extract_program.py <page> <file>"""
import re
import sys

program = ""
for block in re.findall(r"^```cpp\n(.*?)^```", open(sys.argv[1], encoding="utf-8").read(), re.DOTALL | re.MULTILINE):
    program += block
    if "int main(" in block:
        break
else:
    sys.exit(f"{sys.argv[1]}: no cpp block defines main()")
with open(sys.argv[2], "w", encoding="utf-8") as file:
    file.write(program)
