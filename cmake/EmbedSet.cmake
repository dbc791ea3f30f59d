string(REPLACE "|" ";" inputs "${INPUTS}")
set(text "")
set(rows "")
foreach(input ${inputs})
  get_filename_component(name ${input} NAME_WE)
  string(MAKE_C_IDENTIFIER ${name} id)
  file(READ ${input} hex HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
  string(APPEND text "static const char text_${id}[] = {${bytes}0};\n")
  string(APPEND rows "    {\"${name}\", text_${id}},\n")
endforeach()
file(WRITE ${OUTPUT} "${text}struct up_embedded { const char *name, *text; };\n"
  "extern const struct up_embedded ${SYMBOL}[];\n"
  "const struct up_embedded ${SYMBOL}[] = {\n${rows}    {0, 0}};\n")
