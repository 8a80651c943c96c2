# Run by `cmake --install`: writes the man page and bash's completion, which the executable prints. If it cannot run
# here, for example without a driver, they are omitted with a warning. Reads TRIREME, MAN and SHARE (relative to the
# prefix).
function(write_page path)
  execute_process(COMMAND ${TRIREME} ${ARGN} OUTPUT_VARIABLE text RESULT_VARIABLE failed ERROR_VARIABLE why)
  if(failed)
    message(WARNING "${TRIREME} does not run here (${failed}), so there is no ${path}: ${why}")
    return()
  endif()
  set(file "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/${path}")
  message(STATUS "Installing: ${file}")
  file(WRITE "${file}" "${text}")
  # Adds the file to install_manifest.txt, which `make uninstall` reads.
  set(CMAKE_INSTALL_MANIFEST_FILES ${CMAKE_INSTALL_MANIFEST_FILES} "${CMAKE_INSTALL_PREFIX}/${path}" PARENT_SCOPE)
endfunction()
write_page(${MAN}/man1/trireme.1 help --man)
write_page(${SHARE}/bash-completion/completions/trireme completion bash)
