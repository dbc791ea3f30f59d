# Files that the programs carry in themselves.

# up_embed(TARGET FILE SYMBOL): `const char SYMBOL[]` holds the file and a final NUL.
function(up_embed target file symbol)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/embed/${target}/${symbol}.c)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DINPUT=${CMAKE_CURRENT_SOURCE_DIR}/${file} -DOUTPUT=${output}
      -DSYMBOL=${symbol} -P ${CMAKE_CURRENT_SOURCE_DIR}/cmake/EmbedFile.cmake
    DEPENDS ${file} cmake/EmbedFile.cmake)
  target_sources(${target} PRIVATE ${output})
endfunction()

# up_embed_set(TARGET SYMBOL FILES...): `const struct { const char *name, *text; } SYMBOL[]`, the
# names without folder and extension, ended by a row of NULL (up_machine_files of trainer/forecast/machine.c is one).
function(up_embed_set target symbol)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/embed/${target}/${symbol}.c)
  string(REPLACE ";" "|" inputs "${ARGN}")
  set(script ${CMAKE_SOURCE_DIR}/cmake/EmbedSet.cmake)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} "-DINPUTS=${inputs}" -DOUTPUT=${output} -DSYMBOL=${symbol} -P ${script}
    DEPENDS ${ARGN} ${script} VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()
