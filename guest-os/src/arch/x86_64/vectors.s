# Interrupt and exception entries, 16 bytes for each of the 256 vectors.
#
# A device interrupt saves only what a call may change, and is acknowledged here: 3 + 9 instructions before the call, and
# 4 + 9 + 1 after it. Everything else saves all registers, in the order of `Trap`.

    .section .text.vectors, "ax"
    .balign 16
    .global vector_entries
vector_entries:
    .set vector, 0
    .rept 256
    .balign 16
    .if (vector >= {first_slot}) && (vector < {first_slot} + {slots})
    push rdi
    mov edi, vector - {first_slot}
    jmp device_entry
    .else
    # These push an error code themselves (SDM vol. 3A, table 7-1).
    .if !((vector == 8) || ((vector >= 10) && (vector <= 14)) || (vector == 17) || (vector == 21) || (vector == 29) || (vector == 30))
    push 0
    .endif
    push vector
    jmp trap_entry
    .endif
    .set vector, vector + 1
    .endr

    .balign 16
device_entry:
    push rax
    push rcx
    push rdx
    push rsi
    push r8
    push r9
    push r10
    push r11
    cld
    call {device}
    xor eax, eax
    xor edx, edx
    mov ecx, {eoi}
    wrmsr
    pop r11
    pop r10
    pop r9
    pop r8
    pop rsi
    pop rdx
    pop rcx
    pop rax
    pop rdi
    iretq

    .balign 16
trap_entry:
    push rax
    push rcx
    push rdx
    push rbx
    push rbp
    push rsi
    push rdi
    push r8
    push r9
    push r10
    push r11
    push r12
    push r13
    push r14
    push r15
    cld
    mov rdi, rsp
    call {trap}
    pop r15
    pop r14
    pop r13
    pop r12
    pop r11
    pop r10
    pop r9
    pop r8
    pop rdi
    pop rsi
    pop rbp
    pop rbx
    pop rdx
    pop rcx
    pop rax
    add rsp, 16
    iretq
